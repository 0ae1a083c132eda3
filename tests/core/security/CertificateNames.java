import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.Base64;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * What Java and Kafka make of names. Reads a line each, in Base64 with spaces between: a certificate
 * (DER), or mapping rules and a name (UTF-8). Prints a line each: the name, or "!" if there is none.
 */
public class CertificateNames {
    public static void main(String[] none) throws Exception {
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            byte[] first = Base64.getDecoder().decode(words[0]);
            String said = words.length == 1 ? name(first) : mapped(text(first), text(words[1]));
            byte[] bytes = said.getBytes(StandardCharsets.UTF_8);
            System.out.println(Base64.getEncoder().encodeToString(bytes));
        }
    }

    private static String name(byte[] certificate) throws Exception {
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        ByteArrayInputStream in = new ByteArrayInputStream(certificate);
        return ((X509Certificate) factory.generateCertificate(in)).getSubjectX500Principal().getName();
    }

    private static String mapped(String rules, String name) {
        try {
            return SslPrincipalMapper.fromRules(rules).getName(name);
        } catch (Exception noneFits) {
            return "!";
        }
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static String text(String word) {
        return text(Base64.getDecoder().decode(word));
    }
}
