package compat

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if dir, err := serverDir(); err == nil {
			os.RemoveAll(dir)
		}
		os.Exit(code)
	}))
}

var (
	serverDir    = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "slotmesh-compat") })
	serverBinary = sync.OnceValues(func() (string, error) {
		dir, err := serverDir()
		if err != nil {
			return "", err
		}
		bin := filepath.Join(dir, "server")
		cmd := exec.Command("go", "build", "-o", bin, "./examples/server")
		cmd.Dir = ".."
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w\n%s", err, out)
		}
		return bin, nil
	})
)

// buildServer builds examples/server, once for all tests.
func buildServer(t testing.TB) string {
	t.Helper()
	bin, err := serverBinary()
	require.NoError(t, err)
	return bin
}
