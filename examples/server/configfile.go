package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	includeDepth = 16  // files that include each other; one more is refused
	includeFiles = 256 // in all
)

// includes reads the files that a configuration names, and those that they name.
type includes struct{ read int }

// expand puts the lines of a file where an include names it. What comes later wins,
// as everywhere in a configuration. A name with *, ? or [ is every file that it
// fits, in the order of their names, and none is enough.
func (f *includes) expand(all []directive, depth int) (out []directive, err error) {
	for i := range all {
		d := &all[i]
		if d.name != "include" {
			out = append(out, *d)
			continue
		}
		names, err := d.included()
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			lines, err := f.file(d, name, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, lines...)
		}
	}
	return out, nil
}

// included is the files that an include names.
func (d *directive) included() ([]string, error) {
	if len(d.args) != 1 || d.args[0] == "" {
		return nil, d.bad("include %q, expected one file", strings.Join(d.args, " "))
	}
	name := d.args[0]
	if _, err := os.Stat(name); err == nil || !strings.ContainsAny(name, "*?[") {
		return []string{name}, nil
	}
	names, err := filepath.Glob(name)
	if err != nil {
		return nil, d.bad("include %q: %v", name, err)
	}
	slices.Sort(names)
	return names, nil
}

// file reads a file, and what it includes.
func (f *includes) file(d *directive, name string, depth int) ([]directive, error) {
	switch f.read++; {
	case depth > includeDepth:
		return nil, d.bad("include %q: files include each other %d deep, expected at most %d", name, depth, includeDepth)
	case f.read > includeFiles:
		return nil, d.bad("include %q: more than %d files", name, includeFiles)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, d.bad("config file: %v", err)
	}
	defer file.Close()
	lines, err := readConfig(file, name)
	if err != nil {
		return nil, err
	}
	return f.expand(lines, depth)
}

// readConfig reads lines "name value ...". A # begins a comment where it begins
// the line, as in redis.conf.
func readConfig(r io.Reader, name string) (out []directive, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		where := fmt.Sprintf("%s line %d", name, n)
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		words, err := splitWords(text)
		if err != nil {
			return nil, &configError{where, err.Error()}
		}
		out = append(out, directive{where: where, name: strings.ToLower(words[0]), args: words[1:]})
	}
	return out, lines.Err()
}

// splitWords splits a line at spaces, but for those in quotes: "..." knows \n,
// \r, \t, \", \\ and \xFF, and '...' knows \'.
func splitWords(text string) (words []string, err error) {
	for text = strings.TrimLeft(text, " \t"); text != ""; text = strings.TrimLeft(text, " \t") {
		var word string
		switch text[0] {
		case '"', '\'':
			if word, text, err = quoted(text); err != nil {
				return nil, err
			}
		default:
			end := strings.IndexAny(text, " \t")
			if end < 0 {
				end = len(text)
			}
			word, text = text[:end], text[end:]
		}
		words = append(words, word)
	}
	return words, nil
}

// quoted takes a word in quotes from the front of a text.
func quoted(text string) (word, rest string, err error) {
	quote := text[0]
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch ch := text[i]; {
		case ch == quote && i+1 < len(text) && text[i+1] != ' ' && text[i+1] != '\t':
			return "", "", fmt.Errorf("%q follows a closing quote, expected a space", text[i+1])
		case ch == quote:
			return b.String(), text[i+1:], nil
		case ch == '\\' && i+1 < len(text):
			i++
			i += escape(&b, quote, text[i:])
		default:
			b.WriteByte(ch)
		}
	}
	return "", "", fmt.Errorf("a quote is not closed")
}

// escape writes what a backslash and the text behind it stand for, and returns
// how many bytes more than one it took.
func escape(b *strings.Builder, quote byte, text string) int {
	if quote == '\'' {
		if text[0] != '\'' {
			b.WriteByte('\\')
		}
		b.WriteByte(text[0])
		return 0
	}
	if text[0] == 'x' && len(text) > 2 {
		if n, err := strconv.ParseUint(text[1:3], 16, 8); err == nil {
			b.WriteByte(byte(n))
			return 2
		}
	}
	if i := strings.IndexByte("nrtba", text[0]); i >= 0 {
		b.WriteByte("\n\r\t\b\a"[i])
	} else {
		b.WriteByte(text[0])
	}
	return 0
}
