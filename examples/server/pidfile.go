package main

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
)

// writePIDFile writes the number of this process where the configuration wants it,
// and returns what removes it. As in Redis, a file that cannot be written keeps
// nobody from being served.
func writePIDFile(name string, log *slog.Logger) (remove func()) {
	pid := strconv.Itoa(os.Getpid())
	if err := os.WriteFile(name, []byte(pid+"\n"), 0o644); err != nil {
		log.Warn(fmt.Sprintf("Failed to write PID file: %v", err))
		return func() {}
	}
	return func() {
		// Another server may have been given the same file meanwhile.
		if text, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(text)) == pid {
			os.Remove(name)
		}
	}
}
