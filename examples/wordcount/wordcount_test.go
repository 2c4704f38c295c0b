package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWordsAreRunsOfLettersAndDigits(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"", ""},
		{"Hello, World!", "hello world"},
		{"a1 b-2_c", "a1 b 2 c"},
		{"Żółć ΑΒΓ 漢字 ٣٤", "żółć αβγ 漢字 ٣٤"},
		{"it's\n\ttwo lines", "it s two lines"},
		{"bad\xffbyte", "bad byte"},
		{"end", "end"},
	} {
		src, err := open([]string{"-"}, strings.NewReader(tc.text))
		require.NoError(t, err)
		var got []string
		require.NoError(t, src.words(func(w string, _ int64) error { got = append(got, w); return nil }))
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%q: %q, want %q", tc.text, s, tc.want)
		}
	}
}

// programOf is the program with a text as its standard input, and what it prints.
func programOf(stdin string) (p *program, out, diag *bytes.Buffer) {
	out, diag = &bytes.Buffer{}, &bytes.Buffer{}
	return &program{strings.NewReader(stdin), out, diag, isTerminal, newMesh}, out, diag
}

// counted is what the program prints, which must not fail.
func counted(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	p, out, diag := programOf(stdin)
	require.Zero(t, p.run(t.Context(), args), "%v: %s", args, diag)
	require.Empty(t, diag.String(), "not a terminal")
	return out.String()
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func TestBadInputIsNamed(t *testing.T) {
	long := write(t, "one\ntwo "+strings.Repeat("x", wordMax)+" fits\n"+strings.Repeat("y", wordMax+1))
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "no files"},
		{[]string{"-speed", "-"}, "flag provided but not defined: -speed"},
		{[]string{"-nodes", "many", "-"}, `invalid value "many" for flag -nodes`},
		{[]string{"-nodes", "0", "-"}, "-nodes is 0, expected 1 to 32"},
		{[]string{"-nodes", "33", "-"}, "-nodes is 33, expected 1 to 32"},
		{[]string{filepath.Join(t.TempDir(), "none")}, "no such file"},
		{[]string{t.TempDir()}, "is a folder, expected a file"},
		{[]string{"-nodes", "1", long}, long + ":3: a word of more than 65536 bytes"},
	} {
		p, out, diag := programOf("")
		require.Equal(t, 1, p.run(t.Context(), tc.args), tc.want)
		require.Equal(t, 1, strings.Count(diag.String(), tc.want), diag.String())
		require.Regexp(t, "(?m)^wordcount: ", diag.String())
		require.Empty(t, out.String())
	}
}

func TestHelpIsNoError(t *testing.T) {
	p, out, diag := programOf("")
	require.Zero(t, p.run(t.Context(), []string{"-h"}))
	require.Regexp(t, "^usage: wordcount (?s:.*)-nodes(?s:.*)-tcp", diag.String())
	require.NotContains(t, diag.String(), "wordcount: ")
	require.Empty(t, out.String())
}

func TestEveryWordIsCountedWhileANodeJoins(t *testing.T) {
	var text strings.Builder
	for i := range 3000 {
		text.WriteString([]string{"The ", "quick ", "brown ", "fox\n"}[i%4])
		text.WriteString(strings.Repeat("z", 1+i%50) + " ")
	}
	name := write(t, text.String())
	for _, args := range [][]string{{name}, {"-nodes", "1", name}, {"-tcp", "-nodes", "4", name}} {
		out := counted(t, "", args...)
		require.Regexp(t, regexp.MustCompile(`(?m)^750 +brown\n750 +fox`), out)
		require.True(t, strings.HasSuffix(out, "ok: 6000 words, 54 distinct, 0 wrong\n"), out)
	}
	out := counted(t, "", name)
	require.Regexp(t, `4 +\d+ +4096`, out)
	require.Regexp(t, `[1-9]\d* words were counted while node 4 joined`, out)
}

// The node that joins gets floor(16384 / (N+1)) slots, the others have what is left.
func TestTheShareOfTheNodeThatJoins(t *testing.T) {
	for nodes, share := range map[int]int{1: 8192, 3: 4096, 5: 2730} {
		synctest.Test(t, func(t *testing.T) {
			out := counted(t, "some words", "-nodes", fmt.Sprint(nodes), "-")
			require.Regexp(t, fmt.Sprintf(`(?m)^%d +\d+ +%d$`, nodes+1, share), out)
			sum := 0
			for _, row := range regexp.MustCompile(`(?m)^\d+ +\d+ +(\d+)$`).FindAllStringSubmatch(out, -1) {
				var slots int
				fmt.Sscan(row[1], &slots)
				sum += slots
			}
			require.Equal(t, slotmesh.NumSlots, sum, out)
		})
	}
}

// The most frequent come first, of equal ones the smaller, and no more than twenty.
func TestTheOrderOfTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := "pear fig apple pear fig apple pear zebra"
		for c := 'y'; c >= 'a'; c-- {
			text += " " + string(c)
		}
		words := []string{"3  pear", "2  apple", "2  fig"}
		for c := 'a'; len(words) < top; c++ {
			words = append(words, "1  "+string(c))
		}
		head, _, _ := strings.Cut(counted(t, text, "-nodes", "1", "-"), "\n\n")
		require.Equal(t, strings.Join(words, "\n"), head)
	})
}

// Of a long word the beginning is shown, with a sign that there is more.
func TestALongWordIsShownAsCut(t *testing.T) {
	fits, cut, other := strings.Repeat("ż", letters), strings.Repeat("ż", letters+1), strings.Repeat("ż", letters)+"xx"
	require.Equal(t, fits, shown(fits))
	require.Equal(t, fits+"… (41 letters)", shown(cut))
	require.Equal(t, fits+"… (42 letters)", shown(other))
	require.Empty(t, shown(""))
}

// counting is a cluster of n nodes and a counter that has half of its text before it.
func counting(t *testing.T, n int) *counter {
	t.Helper()
	m, err := newMesh(n, false)
	require.NoError(t, err)
	t.Cleanup(func() { m.close() })
	require.NoError(t, m.form(t.Context()))
	return newCounter(t.Context(), m, 1, func(int64) {})
}

func TestACallThatMayHaveCountedEndsTheProgram(t *testing.T) {
	c := counting(t, 3)
	require.NoError(t, c.add("word", 0))
	require.Eventually(t, func() bool { return c.counts.Load() == 1 }, 20*time.Second, time.Millisecond)
	for _, n := range c.mesh.nodes {
		require.NoError(t, n.Close())
	}
	for c.add("word", 0) == nil {
	}
	require.ErrorContains(t, c.wait(), `counting "word": `)
	require.EqualValues(t, 1, c.counts.Load(), "and is not repeated")
}

// The connections break while a word is counted: who has asked for that from another
// node cannot know whether it has happened. Nobody asks again, and the program ends.
func TestAnUnknownOutcomeEndsTheProgramAndIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faults := transport.NewFaults(transport.NewMemory(), 1)
		defer faults.Close()
		const nodes = 3
		var mu sync.Mutex
		counted := map[string]int{}
		p, out, diag := programOf("")
		var text strings.Builder
		for i := range 1000 {
			fmt.Fprintf(&text, "w%d ", i) // each once
		}
		p.stdin = strings.NewReader(text.String())
		p.newMesh = func(n int, tcp bool) (*mesh, error) {
			m, err := newMesh(n, tcp)
			m.via = func(addr string) slotmesh.Transport { return faults.Node(addr) }
			m.config.Commands = []slotmesh.Command{{Name: add.Name, Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
				mu.Lock()
				counted[string(args[0])]++
				mu.Unlock()
				reply, err := add.Run(tx, args)
				for i := range nodes {
					for j := range i {
						faults.Reset(nodeName(i), nodeName(j))
					}
				}
				return reply, err
			}}}
			return m, err
		}
		var unknown *slotmesh.OpError
		err := p.count(t.Context(), []string{"-nodes", fmt.Sprint(nodes), "-"})
		require.ErrorAs(t, err, &unknown)
		require.Equal(t, slotmesh.Unknown, unknown.Outcome)
		word := regexp.MustCompile(`counting "(w\d+)": `).FindStringSubmatch(err.Error())
		require.NotNil(t, word, err.Error())
		require.LessOrEqual(t, counted[word[1]], 1, "a request may also be lost on its way there")
		for word, n := range counted {
			require.Equal(t, 1, n, word)
		}

		p.stdin = strings.NewReader(text.String())
		require.Equal(t, 1, p.run(t.Context(), []string{"-nodes", fmt.Sprint(nodes), "-"}))
		require.Regexp(t, `^wordcount: counting "w\d+": .*unknown`, diag.String())
		require.Empty(t, out.String())
	})
}

// Who ends the program while it counts gets an error, and no report.
func TestAnInterruptEndsTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, out, diag := programOf("")
		ctx, cancel := context.WithCancelCause(t.Context())
		p.stdin = readerFunc(func([]byte) (int, error) {
			cancel(errors.New("stopped by hand"))
			return 0, io.EOF
		})
		require.Equal(t, 1, p.run(ctx, []string{"-nodes", "1", "-"}))
		require.Equal(t, "wordcount: stopped by hand\n", diag.String())
		require.Empty(t, out.String())
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestAnErrorOfTheInputEndsTheProgramBeforeANodeJoins(t *testing.T) {
	c := counting(t, 1)
	require.NoError(t, c.add("word", 0))
	require.EqualError(t, c.abort(io.ErrUnexpectedEOF), io.ErrUnexpectedEOF.Error())
	require.Len(t, c.mesh.nodes, 1)
}

func TestAWrongCountIsAnError(t *testing.T) {
	c := counting(t, 1)
	for range 3 {
		require.NoError(t, c.add("word", 0))
	}
	require.NoError(t, c.wait())
	_, err := c.clients[0].Do(t.Context(), "add", []byte("word"))
	require.NoError(t, err)
	require.EqualError(t, c.report(io.Discard), "3 words, 1 distinct, 1 wrong, 3 counted")
}

// Of standard input nobody knows the length: a node joins after the first MiB.
func TestHalfOfTheText(t *testing.T) {
	name := write(t, strings.Repeat("word ", 1000))
	for _, row := range []struct {
		args []string
		half int64
	}{{[]string{name}, 2500}, {[]string{name, name}, 5000}, {[]string{"-"}, 1 << 20}} {
		src, err := open(row.args, strings.NewReader(""))
		require.NoError(t, err)
		require.Equal(t, row.half, src.half(), row.args)
		src.close()
	}
}

func TestProgressIsShownOnATerminalAlone(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "diag"))
	require.NoError(t, err)
	defer f.Close()
	require.False(t, isTerminal(f))
	require.False(t, isTerminal(&bytes.Buffer{}))
	never := func(io.Writer) bool { return false }
	always := func(io.Writer) bool { return true }
	synctest.Test(t, func(t *testing.T) {
		var pipe, terminal bytes.Buffer
		for _, row := range []struct {
			diag *bytes.Buffer
			is   func(io.Writer) bool
			want string
		}{{&pipe, never, ""}, {&terminal, always, "\r2 words\r4 words\r\x1b[K"}} {
			progress := progressTo(row.diag, row.is)
			progress(1) // too early
			time.Sleep(101 * time.Millisecond)
			progress(2)
			progress(3)
			time.Sleep(101 * time.Millisecond)
			progress(4)
			progress(-1)
			require.Equal(t, row.want, row.diag.String())
		}

		p, out, diag := programOf("")
		p.isTerminal = always
		left := 10
		p.stdin = readerFunc(func(b []byte) (int, error) { // somebody types
			if left--; left < 0 {
				return 0, io.EOF
			}
			time.Sleep(60 * time.Millisecond)
			return copy(b, "word "), nil
		})
		require.Zero(t, p.run(t.Context(), []string{"-nodes", "1", "-"}))
		require.Equal(t, "\r2 words\r4 words\r6 words\r8 words\r10 words\r\x1b[K", diag.String())
		require.NotContains(t, out.String(), "\r")
	})
}

func TestNothingToCount(t *testing.T) {
	require.Contains(t, counted(t, "\n ...\n", "-nodes", "2", "-"), "ok: 0 words, 0 distinct, 0 wrong\n")
}
