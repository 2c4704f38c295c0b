package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// levelNotice is Redis's level between verbose and warning.
const levelNotice = slog.LevelInfo + 2

// logLevels are the words of redis.conf.
var logLevels = map[string]slog.Level{"debug": slog.LevelDebug, "verbose": slog.LevelInfo, "notice": levelNotice, "warning": slog.LevelWarn}

// logHandler writes lines as redis-server does: scripts wait for some of them.
//
//	4711:M 30 Nov 2026 02:02:02.128 * Ready to accept connections
type logHandler struct {
	mu    *sync.Mutex
	out   io.Writer
	level slog.Level
	attrs string
}

func newLog(out io.Writer, level slog.Level) *logHandler {
	return &logHandler{mu: &sync.Mutex{}, out: out, level: level}
}

// Enabled implements slog.Handler.
func (h *logHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

// Handle implements slog.Handler.
func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	sign := "."
	switch {
	case r.Level >= slog.LevelWarn:
		sign = "#"
	case r.Level >= levelNotice:
		sign = "*"
	case r.Level >= slog.LevelInfo:
		sign = "-"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d:M %s %s %s%s", os.Getpid(), r.Time.Format("02 Jan 2006 15:04:05.000"), sign, r.Message, h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteString(attrText(a))
		return true
	})
	b.WriteByte('\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.out, b.String())
	return err
}

func attrText(a slog.Attr) string {
	if t, ok := a.Value.Any().(time.Time); ok {
		return fmt.Sprintf(" %s=%s", a.Key, t.Format(time.RFC3339Nano))
	}
	return fmt.Sprintf(" %s=%v", a.Key, a.Value)
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	for _, a := range attrs {
		c.attrs += attrText(a)
	}
	return &c
}

// WithGroup implements slog.Handler. Groups have no place in a line.
func (h *logHandler) WithGroup(string) slog.Handler { return h }
