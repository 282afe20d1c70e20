// The essential transactions; README.md says how to run it.
import { connect, end } from "./oncelog.js";

const cluster = await connect(process.argv[2]).catch(end);
const orders = await cluster.topic("orders", 2);
const bills = await cluster.topic("bills", 1);
const producer = await cluster.producer("example-node");

let tx = await producer.begin(); // Two partitions: both or none.
await tx.send(orders, 0, "2 apples", "1 pear");
await tx.send(orders, 1, "5 plums");
await tx.commit();

const input = await cluster.unread("billing", orders, 0);
tx = await producer.begin(); // Consume, transform, produce: the position moves with the output.
await tx.send(bills, 0, ...input.values.map((order) => `bill for ${order}`));
await tx.consumed(input);
await tx.commit();

tx = await producer.begin(); // Nobody ever sees this.
await tx.send(bills, 0, "bill for nothing");
await tx.abort();

for (const bill of await cluster.read(bills, 0)) console.log(bill);
cluster.close();
