package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

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
		{[]string{"-nodes", "0", "-"}, "-nodes is 0, expected 1 to 32"},
		{[]string{"-nodes", "33", "-"}, "-nodes is 33, expected 1 to 32"},
		{[]string{filepath.Join(t.TempDir(), "none")}, "no such file"},
		{[]string{t.TempDir()}, "is a folder, expected a file"},
		{[]string{"-nodes", "1", long}, long + ":3: a word of more than 65536 bytes"},
	} {
		err := run(t.Context(), tc.args, strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{})
		require.ErrorContains(t, err, tc.want)
	}
}

func TestEveryWordIsCountedWhileANodeJoins(t *testing.T) {
	var text strings.Builder
	for i := range 3000 {
		text.WriteString([]string{"The ", "quick ", "brown ", "fox\n"}[i%4])
		text.WriteString(strings.Repeat("z", 1+i%50) + " ")
	}
	name := write(t, text.String())
	for _, args := range [][]string{{name}, {"-nodes", "1", name}, {"-tcp", "-nodes", "4", name}} {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), args, nil, &out, &bytes.Buffer{}), "%v", args)
		require.Regexp(t, regexp.MustCompile(`(?m)^750 +brown\n750 +fox`), out.String())
		require.True(t, strings.HasSuffix(out.String(), "ok: 6000 words, 54 distinct, 0 wrong\n"), out.String())
	}
	out := report(t, name)
	require.Regexp(t, `4 +\d+ +4096`, out)
	require.Regexp(t, `[1-9]\d* words were counted while node 4 joined`, out)
}

// counting is a cluster of n nodes and a counter that has half of its text before it.
func counting(t *testing.T, n int) *counter {
	t.Helper()
	m, err := startMesh(t.Context(), n, false)
	require.NoError(t, err)
	t.Cleanup(func() { m.close() })
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
	var pipe bytes.Buffer
	for _, diag := range []io.Writer{f, &pipe} {
		progress := progressTo(diag)
		progress(1)
		progress(-1)
	}
	require.Zero(t, pipe.Len())
	info, err := f.Stat()
	require.NoError(t, err)
	require.Zero(t, info.Size())
}

func report(t *testing.T, name string) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{name}, nil, &out, &bytes.Buffer{}))
	return out.String()
}

func TestNothingToCount(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-nodes", "2", "-"}, strings.NewReader("\n ...\n"), &out, &bytes.Buffer{}))
	require.Contains(t, out.String(), "ok: 0 words, 0 distinct, 0 wrong\n")
}
