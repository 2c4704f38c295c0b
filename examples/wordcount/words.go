package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	wordMax   = 64 << 10 // bytes of a word, as many as a key may have
	stdinHalf = 1 << 20  // bytes of standard input after which the fourth node joins
)

// source is the text to be counted.
type source struct {
	files []file
	bytes int64 // in all, as far as it is known
	stdin bool
}

type file struct {
	name string
	r    io.Reader
	done func() error
}

// open opens the files; - is standard input.
func open(names []string, stdin io.Reader) (*source, error) {
	s := &source{}
	for _, name := range names {
		if name == "-" {
			s.stdin = true
			s.files = append(s.files, file{"standard input", stdin, func() error { return nil }})
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			s.close()
			return nil, err
		}
		s.files = append(s.files, file{name, f, f.Close})
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			err = fmt.Errorf("%s is a folder, expected a file", name)
		}
		if err != nil {
			s.close()
			return nil, err
		}
		s.bytes += info.Size()
	}
	return s, nil
}

func (s *source) close() {
	for _, f := range s.files {
		_ = f.done()
	}
}

// half is the number of bytes after which half of the text is read; of
// standard input nobody knows.
func (s *source) half() int64 {
	if s.stdin {
		return stdinHalf
	}
	return s.bytes / 2
}

// words calls add for each word in lower case, with the bytes read so far.
func (s *source) words(add func(word string, read int64) error) error {
	read := int64(0)
	for _, f := range s.files {
		if err := f.words(&read, add); err != nil {
			return err
		}
	}
	return nil
}

// words splits a file: a word is a maximal run of letters and digits.
func (f *file) words(read *int64, add func(word string, read int64) error) error {
	r := bufio.NewReaderSize(f.r, 64<<10)
	var word strings.Builder
	line := 1
	flush := func() error {
		if word.Len() == 0 {
			return nil
		}
		w := strings.ToLower(word.String())
		word.Reset()
		if len(w) > wordMax {
			return f.tooLong(line)
		}
		return add(w, *read)
	}
	for {
		c, size, err := r.ReadRune()
		if errors.Is(err, io.EOF) {
			return flush()
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", f.name, line, err)
		}
		*read += int64(size)
		if c == utf8.RuneError && size == 1 || !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			if err := flush(); err != nil {
				return err
			}
			if c == '\n' {
				line++
			}
			continue
		}
		if word.WriteRune(c); word.Len() > wordMax {
			return f.tooLong(line)
		}
	}
}

func (f *file) tooLong(line int) error {
	return fmt.Errorf("%s:%d: a word of more than %d bytes", f.name, line, wordMax)
}
