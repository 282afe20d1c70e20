import java.util.List;

/** The essential transactions; README.md says how to run it. */
public class Main {
  public static void main(String[] arguments) {
    try (var cluster = Oncelog.connect(arguments[0])) {
      var orders = cluster.topic("orders", 2);
      var bills = cluster.topic("bills", 1);
      var producer = cluster.producer("example-java");

      var tx = producer.begin(); // Two partitions: both or none.
      tx.send(orders, 0, List.of("2 apples", "1 pear"));
      tx.send(orders, 1, List.of("5 plums"));
      tx.commit();

      var input = cluster.unread("billing", orders, 0);
      tx = producer.begin(); // Consume, transform, produce: the position moves with the output.
      tx.send(bills, 0, input.values().stream().map(order -> "bill for " + order).toList());
      tx.consumed(input);
      tx.commit();

      tx = producer.begin(); // Nobody ever sees this.
      tx.send(bills, 0, List.of("bill for nothing"));
      tx.abort();

      cluster.read(bills, 0).forEach(System.out::println);
    } catch (Oncelog.Refused error) {
      System.err.println(error.getMessage());
      System.exit(1);
    }
  }
}
