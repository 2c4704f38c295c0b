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
	p := program{stdin: os.Stdin, out: os.Stdout, diag: os.Stderr, isTerminal: isTerminal, newMesh: newMesh}
	code := p.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// program is what this program has to do with the world.
type program struct {
	stdin      io.Reader
	out, diag  io.Writer
	isTerminal func(io.Writer) bool
	newMesh    func(nodes int, tcp bool) (*mesh, error)
}

// run returns the exit code. args are the flags and the names of files.
func (p *program) run(ctx context.Context, args []string) int {
	err := p.count(ctx, args)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(p.diag, "wordcount:", err)
	return 1
}

func (p *program) count(ctx context.Context, args []string) error {
	nodes, tcp, names, err := p.parse(args)
	if err != nil {
		return err
	}
	src, err := open(names, p.stdin)
	if err != nil {
		return err
	}
	defer src.close()

	m, err := p.newMesh(nodes, tcp)
	if err != nil {
		return err
	}
	defer m.close()
	if err := m.form(ctx); err != nil {
		return err
	}
	c := newCounter(ctx, m, src.half(), progressTo(p.diag, p.isTerminal))
	if err := src.words(c.add); err != nil {
		return c.abort(err)
	}
	if err := c.wait(); err != nil {
		return err
	}
	return c.report(p.out)
}

// parse reads the flags. What is wrong it returns, and leaves it to run to say so.
func (p *program) parse(args []string) (nodes int, tcp bool, names []string, err error) {
	flags := flag.NewFlagSet("wordcount", flag.ContinueOnError)
	flags.IntVar(&nodes, "nodes", 3, "nodes that form the cluster, 1 to 32; one more joins half way")
	flags.BoolVar(&tcp, "tcp", false, "connect the nodes over loopback TCP")
	flags.Usage = func() {}
	flags.SetOutput(io.Discard) // it says what is wrong by itself, too
	err = flags.Parse(args)
	switch {
	case err != nil:
		flags.SetOutput(p.diag)
		fmt.Fprintln(p.diag, "usage: wordcount [-nodes N] [-tcp] file ...    (- is standard input)")
		flags.PrintDefaults()
	case nodes < 1 || nodes > 32:
		err = fmt.Errorf("-nodes is %d, expected 1 to 32", nodes)
	case flags.NArg() == 0:
		err = errors.New("no files, expected their names, or - for standard input")
	}
	return nodes, tcp, flags.Args(), err
}
