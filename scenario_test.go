package slotmesh_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// Scenarios: whole clusters in fake time on the memory transport, driven by the
// scripts in testdata/scenarios. A line is a command, and fails if its command does.
//
//	# a comment
//	COMMAND ARGUMENT...
//	! COMMAND...                 the command must fail
//	until 2s COMMAND...          it must succeed, sooner or later within the time
//	stays 2s COMMAND...          it must succeed, again and again, for the time
//	COMMAND... => PATTERN        what it answers (or fails with) must match the pattern;
//	                             a loss that is not explained is no answer
//
// and $NAME stands for what key or leader have given that name.
//
// "cluster 2x1" starts two primaries with a replica each, which are called A and A1, B
// and B1 for ever, whoever leads. The other commands are in commandsOfScenarios.
func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for i, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			racing.OneOf(t, i, 2)
			t.Parallel()
			lines := readScript(t, file)
			synctest.Test(t, func(t *testing.T) {
				s := newScenario(t)
				for _, l := range lines {
					s.trace("%s", l.text)
					if err := s.line(l.text); err != nil {
						t.Fatalf("%s:%d: %s\n\t%v\n%s", file, l.number, l.text, err, s.dump())
					}
				}
			})
		})
	}
}

type scriptLine struct {
	number int
	text   string
}

func readScript(t *testing.T, file string) (lines []scriptLine) {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		text, _, _ := strings.Cut(in.Text(), "# ")
		if text = strings.TrimSpace(text); text != "" && text[0] != '#' {
			lines = append(lines, scriptLine{n, text})
		}
	}
	require.NoError(t, in.Err())
	return lines
}

// line runs a line of a script.
func (s *scenario) line(text string) error {
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case "!":
		switch err := s.line(rest); {
		case err == nil:
			return fmt.Errorf("it has not failed")
		case isFinding(err):
			return err
		}
		return nil
	case "until", "stays":
		limit, line, _ := strings.Cut(rest, " ")
		d, err := time.ParseDuration(limit)
		if err != nil {
			return err
		}
		return s.over(word == "until", d, line)
	}
	command, pattern, matched := strings.Cut(text, " => ")
	words := strings.Fields(s.expand(command))
	c, ok := s.words[words[0]]
	switch {
	case !ok:
		return fmt.Errorf("there is no command %q", words[0])
	case len(words)-1 < c.least:
		return fmt.Errorf("usage: %s %s", words[0], c.usage)
	}
	answer, err := c.run(s, words[1:])
	if !matched || isFinding(err) {
		return err
	}
	if err != nil {
		answer = err.Error()
	}
	return matches(answer, strings.TrimSpace(pattern))
}

func isFinding(err error) bool {
	var f finding
	return errors.As(err, &f)
}

// expand puts in what names stand for.
func (s *scenario) expand(text string) string {
	return regexp.MustCompile(`\$\w+`).ReplaceAllStringFunc(text, func(name string) string { return s.vars[name[1:]] })
}

// over runs a line again and again: until it succeeds, or as long as it does.
func (s *scenario) over(until bool, limit time.Duration, line string) error {
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		err := s.line(line)
		switch late := time.Now().After(end); {
		case until && err == nil, !until && err == nil && late:
			return nil
		case !until && err != nil:
			return fmt.Errorf("%v before the end of %v: %w", time.Until(end), limit, err)
		case late:
			return fmt.Errorf("not within %v: %w", limit, err)
		}
	}
}

// dump is the state of all nodes.
func (s *scenario) dump() string {
	var b strings.Builder
	for _, l := range s.log {
		fmt.Fprintln(&b, l)
	}
	for _, name := range s.names() {
		if m := s.members[name]; m.node != nil {
			st := m.node.Status()
			r := &st.Replication
			fmt.Fprintf(&b, "%s %s: ok %v (%s), ready %v (%s), leads %v, follows %s (%v), in sync %s, at %v %d, voters %s\n", name, m.node.Addr(), st.OK, st.Reason,
				st.Ready, st.Unready, r.Leads, s.nameOf(r.Primary), r.Link, s.namesOf(r.InSync), r.Epoch, r.Offset, s.namesOf(st.Voters))
		}
	}
	return b.String()
}

// trace notes what is done and what happens, for a script that fails.
func (s *scenario) trace(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf("%9.3f  ", time.Since(s.began).Seconds())+fmt.Sprintf(format, args...))
	if len(s.log) > 400 {
		s.log = slices.Clone(s.log[len(s.log)-200:])
	}
}
