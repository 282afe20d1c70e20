// The essential transactions; README.md says how to run it.
package main

import (
	"fmt"
	"os"

	"oncelog.example/oncelog"
)

func main() {
	cluster := oncelog.Must(oncelog.Connect(os.Args[1]))
	orders := oncelog.Must(cluster.Topic("orders", 2))
	bills := oncelog.Must(cluster.Topic("bills", 1))
	producer := oncelog.Must(cluster.Producer("example-go"))

	tx := producer.Begin() // Two partitions: both or none.
	tx.Send(orders, 0, "2 apples", "1 pear")
	tx.Send(orders, 1, "5 plums")
	oncelog.Must(tx.Commit())

	input := oncelog.Must(cluster.Unread("billing", orders, 0))
	tx = producer.Begin() // Consume, transform, produce: the position moves with the output.
	for _, order := range input.Values {
		tx.Send(bills, 0, "bill for "+order)
	}
	tx.Consumed(input)
	oncelog.Must(tx.Commit())

	tx = producer.Begin() // Nobody ever sees this.
	tx.Send(bills, 0, "bill for nothing")
	oncelog.Must(tx.Abort())

	for _, bill := range oncelog.Must(cluster.Read(bills, 0)) {
		fmt.Println(bill)
	}
}
