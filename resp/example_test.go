package resp_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net"
	"strconv"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/resp"
)

// A node alone, with the Redis protocol in front. The client here types its
// commands as one does with nc; any client of Redis does as well.
func ExampleStart() {
	ctx := context.Background()
	node, err := slotmesh.Start(ctx, slotmesh.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	server, err := resp.Start(ctx, resp.Config{Node: node, Addr: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	conn, err := net.Dial("tcp", server.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "SET user:1000 alice\r\nINCR visits\r\n")
	replies := bufio.NewScanner(conn)
	for range 2 {
		replies.Scan()
		fmt.Println(replies.Text())
	}
	name, err := node.Client().Get(ctx, "user:1000") // the same keys
	fmt.Println(string(name), err)
	// Output:
	// +OK
	// :1
	// alice <nil>
}

// An own command beside those of Redis: "app.take key limit" counts up to a limit
// and says whether it did.
func ExampleCommand() {
	take := resp.Command{
		Name: "app.take", Arity: 3, Flags: resp.Write | resp.Fast, First: 1, Last: 1, Step: 1,
		Run: func(c *resp.Call) error {
			limit, err := c.Int(2)
			if err != nil {
				return err
			}
			v, _, err := c.Tx.Get(c.Key(1))
			if err != nil {
				return err
			}
			n, _ := strconv.ParseInt(string(v), 10, 64) // "" is 0
			if n >= limit {
				c.Reply.Int(0)
				return nil
			}
			if err := c.Tx.Put(c.Own(1), strconv.AppendInt(nil, n+1, 10)); err != nil {
				return err
			}
			c.Reply.Int(1)
			return nil
		},
	}
	ctx := context.Background()
	node, err := slotmesh.Start(ctx, slotmesh.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	server, err := resp.Start(ctx, resp.Config{Node: node, Addr: "127.0.0.1:0", Commands: []resp.Command{take}})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	conn, err := net.Dial("tcp", server.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "APP.TAKE tickets 1\r\nAPP.TAKE tickets 1\r\nAPP.TAKE tickets one\r\n")
	replies := bufio.NewScanner(conn)
	for range 3 {
		replies.Scan()
		fmt.Println(replies.Text())
	}
	// Output:
	// :1
	// :0
	// -ERR value is not an integer or out of range
}

// A command of the connection, which touches no key: it sees who asks, and replies
// through the connection.
func ExampleConn() {
	whoAmI := resp.Command{
		Name: "app.whoami", Arity: 1, Flags: resp.Fast,
		Conn: func(c *resp.Conn, args [][]byte) error {
			r := c.Reply()
			r.Array(2)
			r.BulkString("connection")
			r.Int(c.ID())
			return nil
		},
	}
	ctx := context.Background()
	node, err := slotmesh.Start(ctx, slotmesh.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	server, err := resp.Start(ctx, resp.Config{Node: node, Addr: "127.0.0.1:0", Commands: []resp.Command{whoAmI}})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	conn, err := net.Dial("tcp", server.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "APP.WHOAMI\r\n")
	replies := bufio.NewScanner(conn)
	for range 4 {
		replies.Scan()
		fmt.Println(replies.Text())
	}
	// Output:
	// *2
	// $10
	// connection
	// :1
}
