package compat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// runServer runs the server to its end, which has to come soon.
func runServer(t *testing.T, stdin string, args ...string) (output string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, buildServer(t), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	cmd.SysProcAttr = endWithParent()
	err = cmd.Run()
	require.NoError(t, ctx.Err(), "it goes on: %s", &out)
	return out.String(), err
}

// endsWithTest has a process end with the test whose number is in a file, also where
// the test's own process ends without a word: nobody else would end it.
func endsWithTest(t *testing.T, pidFile string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `read line; test -s "$1" && kill -KILL "$(cat "$1")"; true`, "sh", pidFile)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		require.NoError(t, cmd.Wait())
	})
}

// With daemonize yes the command returns when clients are taken, and the server goes
// on in a session of its own. Its pidfile names it as long as it lives.
func TestServerInTheBackground(t *testing.T) {
	t.Parallel()
	for name, configured := range map[string]func(flags []string) (stdin string, args []string){
		"flags": func(flags []string) (string, []string) { return "", append(flags, "--daemonize", "yes") },
		"standard input": func(flags []string) (string, []string) {
			return "daemonize yes\n", append(flags, "-")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, port := t.TempDir(), freePort(t)
			pidFile, logFile := filepath.Join(dir, "server.pid"), filepath.Join(dir, "server.log")
			endsWithTest(t, pidFile)
			stdin, args := configured([]string{"--port", port, "--dir", dir, "--cluster-enabled", "yes", "--pidfile", pidFile, "--logfile", logFile})
			out, err := runServer(t, stdin, args...)
			require.NoError(t, err, out)
			require.Empty(t, out, "what it says is in its log file")

			l := connect(t, net.JoinHostPort("127.0.0.1", port), "2")
			r, err := l.do("PING")
			require.NoError(t, err)
			require.Equal(t, "PONG", r.text, "as soon as the command has returned")
			text, err := os.ReadFile(pidFile)
			require.NoError(t, err)
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			require.NoError(t, err)
			info, err := l.do("INFO", "server")
			require.NoError(t, err)
			require.Contains(t, info.text, fmt.Sprintf("process_id:%d\r\n", pid))
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			require.NoError(t, err)
			_, fields, _ := strings.Cut(string(stat), ") ")
			require.Equal(t, strconv.Itoa(pid), strings.Fields(fields)[3], "a session of its own")
			for fd, want := range map[string]string{"1": os.DevNull, "2": os.DevNull} {
				at, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd))
				require.NoError(t, err)
				require.Equal(t, want, at)
			}

			require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
			require.Eventually(t, func() bool {
				_, err := os.Stat(pidFile)
				return errors.Is(err, os.ErrNotExist)
			}, 30*time.Second, 10*time.Millisecond, "the pidfile goes with it")
			logged, err := os.ReadFile(logFile)
			require.NoError(t, err)
			require.Contains(t, string(logged), "bye bye")
		})
	}
}

// A server that cannot start says so in the foreground, where the script is that has
// started it.
func TestServerThatFailsInTheBackground(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)
	dir := t.TempDir()
	out, err := runServer(t, "", "--port", port, "--dir", dir, "--daemonize", "yes", "--pidfile", filepath.Join(dir, "server.pid"))
	require.Error(t, err)
	require.Contains(t, out, "address already in use")
	_, err = os.Stat(filepath.Join(dir, "server.pid"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// An address that cannot be had is warned of, where another can.
func TestServerWarnsOfAnAddressThatItDoesNotHave(t *testing.T) {
	t.Parallel()
	p := &process{t: t, bin: buildServer(t), port: freePort(t), dir: t.TempDir()}
	p.launch("--port", p.port, "--bind", "127.0.0.1", "192.0.2.1", "--dir", p.dir)
	t.Cleanup(p.kill)
	require.Eventually(t, func() bool { return strings.Contains(p.log.String(), "Ready to accept connections") }, 30*time.Second, 10*time.Millisecond, "%s", &p.log)
	require.Contains(t, p.log.String(), "192.0.2.1: listen tcp 192.0.2.1:"+p.port)
}

// What an include names stands where the include stands; what is wrong with it is
// said with the file and the line.
func TestServerIncludesFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"main.conf": "maxclients 11\nhz 20\ninclude " + at("one.conf") + "\ninclude " + at("more-*.conf") + "\ninclude " + at("none-*.conf") + "\nslowlog-max-len 5\n",
		"one.conf":  "# first\nhz 30\ninclude \"" + at("two words.conf") + "\"\nslowlog-max-len 4\n", "two words.conf": "maxclients 12\n",
		"more-b.conf": "repl-timeout 62\n", "more-a.conf": "repl-timeout 61\ntimeout 0\n",
		"circle.conf": "hz 20\ninclude " + at("circle.conf") + "\n", "twice.conf": "include " + at("thrice.conf") + "\ninclude " + at("thrice.conf") + "\n",
		"thrice.conf": strings.Repeat("include "+at("leaf.conf")+"\n", 200), "leaf.conf": "",
		"missing.conf": "\n\ninclude " + at("absent.conf") + "\n", "bad.conf": "include " + at("badly.conf") + "\n", "badly.conf": "\nmaxclients many\n",
		"two.conf": "include a b\n", "flag.conf": "maxclients 13\n",
	} {
		require.NoError(t, os.WriteFile(at(name), []byte(text), 0o644))
	}
	p := &process{t: t, bin: buildServer(t), port: freePort(t), dir: dir}
	p.launch(at("main.conf"), "--port", p.port, "--dir", dir, "--include", at("flag.conf"), "--logfile", at("log"))
	t.Cleanup(p.kill)
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(at("log"))
		return strings.Contains(string(text), "Ready to accept connections")
	}, 30*time.Second, 10*time.Millisecond, "%s", &p.log)
	for name, want := range map[string]string{"hz": "30", "maxclients": "13", "slowlog-max-len": "5", "repl-timeout": "62"} {
		r := p.do("CONFIG", "GET", name)
		require.Len(t, r.items, 2, name)
		require.Equal(t, want, r.items[1].text, name)
	}
	require.NoError(t, p.stop())

	for name, want := range map[string][]string{
		"circle.conf":  {"circle.conf line 2", "deep"},
		"twice.conf":   {"thrice.conf line ", "more than 256 files"},
		"missing.conf": {"missing.conf line 3", "absent.conf", "no such file"},
		"bad.conf":     {"badly.conf line 2", "maxclients"},
		"two.conf":     {"two.conf line 1", "expected one file"},
	} {
		out, err := runServer(t, "", at(name))
		require.Error(t, err, name)
		for _, w := range want {
			require.Contains(t, out, w, name)
		}
	}
}
