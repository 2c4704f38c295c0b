package slotmesh

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMetaRefusesFoldersWithoutPermission(t *testing.T) {
	path := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
	m, _, err := openMeta(osFS{}, path)
	require.NoError(t, err)
	require.NoError(t, m.save([]cell{testCell(1, 0, "node")}))
	require.NoError(t, m.Close())

	for _, test := range []struct {
		name         string
		folder, file fs.FileMode
		path         string
		fails        string // a file of the folder, or the folder
	}{
		{"none below may be made", 0o555, 0o600, filepath.Join(path, "new"), filepath.Join(path, "new")},
		{"not readable", 0o311, 0o600, path, path},
		{"the lock is another user's", 0o755, 0o000, path, metaLock},
		{"not writable", 0o555, 0o666, path, metaTemp},
	} {
		require.NoError(t, os.Chmod(path, test.folder))
		for _, name := range []string{metaName, metaMade, metaLock} {
			require.NoError(t, os.Chmod(filepath.Join(path, name), test.file))
		}
		err := asNobody(t, func() error {
			m, _, err := openMeta(osFS{}, test.path)
			if err == nil {
				m.Close()
			}
			return err
		})
		require.ErrorIs(t, err, fs.ErrPermission, test.name)
		require.ErrorContains(t, err, "slotmesh: folder "+test.path, test.name)
		require.ErrorContains(t, err, " "+test.fails+": ", test.name)
	}

	require.NoError(t, os.Chmod(path, 0o700))
	m, cells, err := openMeta(osFS{}, path)
	require.NoError(t, err)
	require.Equal(t, []cell{testCell(1, 0, "node")}, cells)
	require.NoError(t, m.Close())
}

// asNobody calls f with the rights of nobody to files: root's are above
// permissions.
func asNobody(t *testing.T, f func() error) (err error) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its rights
		const nobody = 65534
		syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0)
		err = f()
	})
	wg.Wait()
	return err
}
