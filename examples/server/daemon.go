package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	detachedEnv  = "SLOTMESH_SERVER_DETACHED" // set for the process that daemonize yes has started
	detachedWait = time.Minute                // for it to listen; then it is ended
	reportLimit  = 64 << 10                   // bytes of its report
	reportReady  = "ready"
)

// startDetached starts this program again, with the same arguments and input, as a
// process with a session of its own and without this one's terminal. It returns when
// that process takes clients, or says why it does not. A Go program cannot fork, so
// this is what daemonize is here.
func startDetached(ctx context.Context, args []string, stdin []byte) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	report, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer report.Close()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), detachedEnv+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	detach(cmd)
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	text, err := readReport(ctx, report)
	if err == nil && text == reportReady {
		return cmd.Process.Release()
	}
	cmd.Process.Kill()
	ended := cmd.Wait()
	switch {
	case err != nil:
		return fmt.Errorf("the server in the background has been ended: %w", err)
	case text == "":
		return fmt.Errorf("the server in the background has ended without a word: %v", ended)
	}
	return errors.New(text)
}

// readReport reads what a detached process says of its start.
func readReport(ctx context.Context, report *os.File) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, detachedWait)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { report.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	text, err := io.ReadAll(io.LimitReader(report, reportLimit))
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return strings.TrimSpace(string(text)), err
}

// starter is where a detached process reports; nil: nobody waits, for it has not been
// started by startDetached.
type starter struct{ pipe *os.File }

// detachedBy is who has started this process in the background, or nil.
func detachedBy() *starter {
	if os.Getenv(detachedEnv) == "" {
		return nil
	}
	os.Unsetenv(detachedEnv)
	return &starter{os.NewFile(3, "report")} // the first of ExtraFiles
}

// ready says that clients are taken.
func (s *starter) ready() { s.say(reportReady) }

// failed says why not, if it has not been ready.
func (s *starter) failed(err error) {
	if err != nil {
		s.say(err.Error())
	}
}

// say writes the one report there is.
func (s *starter) say(text string) {
	if s == nil || s.pipe == nil {
		return
	}
	io.WriteString(s.pipe, text)
	s.pipe.Close()
	s.pipe = nil
}
