// Wordcount counts the words of files in a cluster that lives inside this
// program. Three nodes form one cluster; every word is a key, and the command
// "add" counts it at the primary of its slot. Half way a fourth node joins and
// takes its share of the slots, while the counting goes on. In the end every
// count is compared with a plain map that was filled beside it.
//
//	go run ./examples/wordcount README.md ARCHITECTURE.md
//	go run ./examples/wordcount -tcp -nodes 5 - < book.txt
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "wordcount:", err)
		os.Exit(1)
	}
}

// run is the program: args are the flags and the names of files.
func run(ctx context.Context, args []string, stdin io.Reader, out, diag io.Writer) error {
	flags := flag.NewFlagSet("wordcount", flag.ContinueOnError)
	flags.SetOutput(diag)
	nodes := flags.Int("nodes", 3, "nodes that form the cluster, 1 to 32; one more joins half way")
	tcp := flags.Bool("tcp", false, "connect the nodes over loopback TCP")
	flags.Usage = func() {
		fmt.Fprintln(diag, "usage: wordcount [-nodes N] [-tcp] file ...    (- is standard input)")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *nodes < 1 || *nodes > 32 {
		return fmt.Errorf("-nodes is %d, expected 1 to 32", *nodes)
	}
	if flags.NArg() == 0 {
		return errors.New("no files, expected their names, or - for standard input")
	}
	src, err := open(flags.Args(), stdin)
	if err != nil {
		return err
	}
	defer src.close()

	m, err := startMesh(ctx, *nodes, *tcp)
	if err != nil {
		return err
	}
	defer m.close()
	c := newCounter(ctx, m, src.half(), progressTo(diag))
	if err := src.words(c.add); err != nil {
		return c.abort(err)
	}
	if err := c.wait(); err != nil {
		return err
	}
	return c.report(out)
}
