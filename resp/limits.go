package resp

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// Limits bound what a client can make the server hold. A zero field stands for
// its default. Bytes are counted as they arrive: no length that a client merely
// announces makes the server allocate.
type Limits struct {
	// Clients is the number of connections at a time. Default 10,000, as in Redis.
	Clients int

	// Args is the number of arguments of a command, its name among them.
	// Default 1,048,576. Redis 7.0 allows 2^31-1.
	Args int

	// Bulk is the length of an argument in bytes, Redis's proto-max-bulk-len.
	// Default 64 MiB, where Redis has 512. An argument of RESTORE, and of what
	// members hand each other in a MIGRATE, is bounded by Command alone: as DUMP
	// writes it, a value may be longer than each of its parts.
	Bulk int

	// Inline is the length in bytes of a command that is typed as a line, and of
	// the line in front of an argument. Default 64 KiB, as in Redis.
	Inline int

	// Command is the length in bytes of a whole command, as it comes over the
	// wire: Redis's client-query-buffer-limit. A connection that passes it is
	// closed without a reply. Default four times Bulk.
	Command int

	// Pipeline is the number of bytes that are read at a time, and so how much of
	// the commands that follow is held while one runs. What is over it waits in
	// the network. Default 16 MiB.
	Pipeline int

	// Output is the number of bytes of replies that are held for a client, those
	// of one command or of an EXEC: before the next one runs they are written. A
	// client that asks for more is disconnected without a reply, as at Redis's
	// client-output-buffer-limit. Default four times Bulk.
	Output int

	// Push is the number of bytes of messages and invalidations that wait for a
	// client. One that does not read them is disconnected at the bound: it would
	// miss some without knowing. Default 32 MiB, as in Redis.
	Push int

	// Queue is the number of bytes of commands between MULTI and EXEC; at the
	// bound a command is refused, and EXEC with it. It bounds what a member hands
	// over in one MIGRATE, too, which is refused over it. Default four times Bulk.
	Queue int

	// Scripts is the number of bytes that the Lua scripts that run may hold
	// together, beside what clients have sent them, as far as can be measured: one
	// step may add 128 MiB before it is noticed. At the bound those are stopped
	// that hold more than the others; nothing of them has happened. Default four
	// times Bulk. For the bound to hold, this package lowers MaxArrayIndex of
	// gopher-lua to 2^23, for whoever uses that in the process.
	Scripts int

	// WriteTime is how long a client may take to read what is written to it
	// before it is disconnected. Default 60 s.
	WriteTime time.Duration

	// What a client may do before it has authenticated, where it must. Defaults:
	// 10 arguments of 16 KiB, as in Redis; 64 KiB of replies; 10 seconds. A line
	// is bounded by PreAuthBulk too.
	PreAuthArgs   int
	PreAuthBulk   int
	PreAuthOutput int
	PreAuthTime   time.Duration
}

// withDefaults replaces what is zero.
func (l Limits) withDefaults() Limits {
	l.Clients = cmp.Or(l.Clients, 10_000)
	l.Args = cmp.Or(l.Args, 1<<20)
	l.Bulk = cmp.Or(l.Bulk, 64<<20)
	l.Inline = cmp.Or(l.Inline, 64<<10)
	l.Command = cmp.Or(l.Command, 4*min(l.Bulk, math.MaxInt/4))
	l.Pipeline = cmp.Or(l.Pipeline, 16<<20)
	l.Output = cmp.Or(l.Output, 4*min(l.Bulk, math.MaxInt/4))
	l.Push = cmp.Or(l.Push, 32<<20)
	l.Queue = cmp.Or(l.Queue, 4*min(l.Bulk, math.MaxInt/4))
	l.Scripts = cmp.Or(l.Scripts, 4*min(l.Bulk, math.MaxInt/4))
	l.WriteTime = cmp.Or(l.WriteTime, time.Minute)
	l.PreAuthArgs = cmp.Or(l.PreAuthArgs, 10)
	l.PreAuthBulk = cmp.Or(l.PreAuthBulk, 16<<10)
	l.PreAuthOutput = cmp.Or(l.PreAuthOutput, 64<<10)
	l.PreAuthTime = cmp.Or(l.PreAuthTime, 10*time.Second)
	return l
}

// validate reports every field that is negative.
func (l Limits) validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int
	}{
		{"Clients", l.Clients}, {"Args", l.Args}, {"Bulk", l.Bulk}, {"Inline", l.Inline}, {"Command", l.Command},
		{"Pipeline", l.Pipeline}, {"Output", l.Output}, {"Push", l.Push}, {"Queue", l.Queue}, {"Scripts", l.Scripts},
		{"PreAuthArgs", l.PreAuthArgs}, {"PreAuthBulk", l.PreAuthBulk}, {"PreAuthOutput", l.PreAuthOutput},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("resp: Limits.%s is %d, expected a positive number, or 0 for the default", f.name, f.value))
		}
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"WriteTime", l.WriteTime}, {"PreAuthTime", l.PreAuthTime}} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("resp: Limits.%s is %v, expected a positive duration, or 0 for the default", f.name, f.value))
		}
	}
	return errors.Join(errs...)
}

// requestLimits are those of Limits that a reader obeys.
type requestLimits struct {
	args, bulk, line, command int

	preAuth bool // in whose words a length is refused
}

// request are the limits on what a client sends.
func (l *Limits) request(authenticated bool) requestLimits {
	if !authenticated {
		return requestLimits{
			args:    min(l.Args, l.PreAuthArgs),
			bulk:    min(l.Bulk, l.PreAuthBulk),
			line:    min(l.Inline, l.PreAuthBulk, l.Command),
			command: l.Command,
			preAuth: true,
		}
	}
	return requestLimits{args: l.Args, bulk: l.Bulk, line: min(l.Inline, l.Command), command: l.Command}
}
