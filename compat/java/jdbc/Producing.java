import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Types;

/**
 * Produces by JDBC, in one transaction, with what applications in Java bind: strings, bytes, nulls,
 * a batch. Arguments: a JDBC URL, a topic, and whether to commit. Prints the SQLSTATE of a refusal.
 */
public class Producing {
    public static void main(String[] arguments) throws SQLException {
        String topic = arguments[1];
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            connection.setAutoCommit(false);
            String call = "SELECT penstock.produce(?, ?, ?)";
            try (PreparedStatement statement = connection.prepareStatement(call)) {
                statement.setString(1, topic);
                statement.setString(2, "strings");
                statement.setString(3, "ä");
                statement.execute();
                statement.setString(2, null);
                statement.setNull(3, Types.VARCHAR);
                statement.execute();
                statement.setBytes(2, "bytes".getBytes(StandardCharsets.UTF_8));
                statement.setBytes(3, new byte[] {0, -1});
                statement.execute();
            }
            call = "SELECT penstock.produce(?, ?, ?::jsonb, ?::jsonb)";
            try (PreparedStatement statement = connection.prepareStatement(call)) {
                statement.setString(1, topic);
                statement.setString(2, "jsonb");
                statement.setString(3, "{\"a\": 1}");
                statement.setString(4, "{\"h\": \"1\"}");
                statement.execute();
            }
            call = "INSERT INTO penstock.outbox (topic, key, value) VALUES (?, ?, ?)";
            try (PreparedStatement statement = connection.prepareStatement(call)) {
                for (int number = 0; number < 20; number++) {
                    statement.setString(1, topic);
                    statement.setString(2, "batch " + number);
                    statement.setString(3, "v");
                    statement.addBatch();
                }
                statement.executeBatch();
            }
            if (arguments[2].equals("commit")) connection.commit();
            else connection.rollback();
            try (PreparedStatement statement =
                    connection.prepareStatement("SELECT penstock.produce(?, 'k', 'v')")) {
                statement.setString(1, "no such topic");
                statement.execute();
            } catch (SQLException refused) {
                System.out.println(refused.getSQLState());
            }
        }
    }
}
