import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after the other in one JVM, whose start costs more than most of them. Reads
 * a line per command (main class and arguments, separated by U+001F); prints a line per answer (exit
 * code, and what the tool printed on both outputs, in Base64).
 */
public class ToolShell {
    /** What stands for the end of the process; a tool may catch it, so the first code counts. */
    private static class Exited extends Error {}

    private static Integer exitCode;

    private static void exit(int code) {
        if (exitCode == null) {
            exitCode = code;
            System.setOut(new PrintStream(OutputStream.nullOutputStream()));
            System.setErr(new PrintStream(OutputStream.nullOutputStream()));
        }
        throw new Exited();
    }

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = commands.readLine()) != null; ) {
            String[] words = line.split("\u001f", -1);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream both = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(both);
            System.setErr(both);
            exitCode = null;
            int code = run(words[0], Arrays.copyOfRange(words, 1, words.length), both);
            if (exitCode != null) code = exitCode;
            answers.println(code + " " + Base64.getEncoder().encodeToString(printed.toByteArray()));
            answers.flush();
        }
    }

    private static int run(String tool, String[] arguments, PrintStream shown) throws Exception {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException raised) {
            if (!(raised.getCause() instanceof Exited)) raised.getCause().printStackTrace(shown);
            return 1;
        }
    }
}
