package slotmesh

import (
	"fmt"
	"go/ast"
	"go/parser"
	tokens "go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The pure core, file by file: values and functions, without clock, chance,
// goroutines or I/O of their own.
var pureFiles = []string{
	"slots.go", "table.go", "shard.go", "shardlog.go", "shown.go", "replica.go", "failover.go", "peer.go", "state.go", "bus.go", "gossip.go", "heartbeat.go", "failure.go",
	"vote.go", "election.go", "voters.go", "form.go", "members.go", "job.go", "mark.go", "operator.go", "route.go", "policy.go", "save.go",
	"event.go", "commands.go", "mutants.go", "mutants_off.go", "mutants_on.go",
}

// Leaves are what the core stands on: how values become bytes, and the words for
// errors. They may share scratch memory between goroutines, and nothing else.
var leafFiles = []string{"codec.go", "plan.go", "wire.go", "errors.go", "doc.go"}

// impureImports are those that a pure file does not have, and what begins with
// them and a slash.
var impureImports = []string{
	"net", "os", "io", "sync", "runtime", "context", "syscall", "log", "math/rand", "crypto/rand", "hash/maphash",
	"testing", "plugin", "github.com", "go.etcd.io", "golang.org",
}

// impureTime are the names of package time that look at a clock.
var impureTime = []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTicker", "NewTimer", "Timer", "Ticker"}

func TestPureFilesHaveNoClockChanceOrGoroutines(t *testing.T) {
	fset := tokens.NewFileSet()
	for _, f := range parseFiles(t, fset, pureFiles) {
		for _, p := range impurities(fset, f) {
			t.Error(p)
		}
	}
}

// TestPureFilesNameNothingOfTheDrivers checks the pure files and the leaves as
// a package of their own: what a driver declares is undefined there.
func TestPureFilesNameNothingOfTheDrivers(t *testing.T) {
	fset := tokens.NewFileSet()
	for _, name := range undefinedIn(fset, parseFiles(t, fset, withoutMutants(slices.Concat(pureFiles, leafFiles)))) {
		t.Error(name)
	}
}

func TestEveryPureFileExists(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range slices.Concat(pureFiles, leafFiles) {
		if !slices.Contains(files, name) {
			t.Errorf("%s is listed as pure, and is not there", name)
		}
	}
}

// The guard itself is tested with what it must find.
func TestPurityGuardFindsWhatIsImpure(t *testing.T) {
	for _, row := range []struct{ name, source, want string }{
		{"a clock", `import "time"; func f() { _ = time.Now() }`, "time.Now"},
		{"a clock under another name", `import tm "time"; var _ = tm.AfterFunc`, "time.AfterFunc"},
		{"a dot import", `import . "time"; func f() { Sleep(1) }`, "imports time without a name"},
		{"a timer's type", `import "time"; type t struct { x *time.Timer }`, "time.Timer"},
		{"a lock", `import "sync"; var mu sync.Mutex`, "imports sync"},
		{"an atomic", `import "sync/atomic"; var n atomic.Int64`, "imports sync/atomic"},
		{"the network", `import "net/netip"; var _ netip.Addr`, "imports net/netip"},
		{"chance", `import "math/rand/v2"; var _ = rand.Int`, "imports math/rand/v2"},
		{"a dependency", `import "github.com/vmihailenco/msgpack/v5"; var _ = msgpack.Marshal`, "imports github.com/"},
		{"a goroutine", `func f() { go f() }`, "starts a goroutine"},
		{"a channel", `type t struct { c chan int }`, "a channel"},
		{"a send", `func f(c any) { c <- 1 }`, "sends on a channel"},
		{"a receive", `func f(c any) { <-c }`, "receives from a channel"},
		{"a select", `func f() { select {} }`, "select"},
		{"nothing", `import ("time"; "fmt"); func f(d time.Duration) string { return fmt.Sprint(d, time.Second) }`, ""},
	} {
		fset := tokens.NewFileSet()
		f, err := parser.ParseFile(fset, "x.go", "package x; "+row.source, 0)
		require.NoError(t, err, row.name)
		found := strings.Join(impurities(fset, f), "; ")
		if row.want == "" && found != "" || !strings.Contains(found, row.want) {
			t.Errorf("%s: found %q, want %q", row.name, found, row.want)
		}
	}
	for _, row := range []struct{ name, source, want string }{
		{"a function", `func f() { driverFunc() }`, "driverFunc"},
		{"a type", `type t struct { d *driver }`, "driver"},
		{"a method that a driver declares", `type state struct{}; func f(s *state) { s.serve() }`, "serve"},
		{"a field that is there", `type state struct{ serve int }; func f(s *state) int { return s.serve }`, ""},
		{"another package", `import "slices"; func f(x []int) { slices.Sort(x) }`, ""},
	} {
		fset := tokens.NewFileSet()
		f, err := parser.ParseFile(fset, "x.go", "package x; "+row.source, 0)
		require.NoError(t, err, row.name)
		found := strings.Join(undefinedIn(fset, []*ast.File{f}), "; ")
		if row.want == "" && found != "" || !strings.Contains(found, row.want) {
			t.Errorf("%s: found %q, want %q", row.name, found, row.want)
		}
	}
}

func parseFiles(t *testing.T, fset *tokens.FileSet, names []string) []*ast.File {
	t.Helper()
	var files []*ast.File
	for _, name := range names {
		src, err := os.ReadFile(name)
		require.NoError(t, err)
		f, err := parser.ParseFile(fset, name, src, 0)
		require.NoError(t, err)
		files = append(files, f)
	}
	return files
}

// withoutMutants leaves out the half of the pair that the build tag selects.
func withoutMutants(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return name == "mutants_on.go" })
}

// impurities says what in a file a pure one may not have.
func impurities(fset *tokens.FileSet, f *ast.File) []string {
	var found []string
	add := func(n ast.Node, format string, args ...any) {
		found = append(found, fmt.Sprintf("%v: ", fset.Position(n.Pos()))+fmt.Sprintf(format, args...))
	}
	clock := "" // the name under which package time is imported
	for _, imp := range f.Imports {
		name, _ := strconv.Unquote(imp.Path.Value)
		for _, bad := range impureImports {
			if name == bad || strings.HasPrefix(name, bad+"/") {
				add(imp, "imports %s", name)
			}
		}
		if name != "time" {
			continue
		}
		switch {
		case imp.Name == nil:
			clock = "time"
		case imp.Name.Name == ".":
			add(imp, "imports time without a name")
		default:
			clock = imp.Name.Name
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == clock && slices.Contains(impureTime, n.Sel.Name) {
				add(n, "time.%s", n.Sel.Name)
			}
		case *ast.GoStmt:
			add(n, "starts a goroutine")
		case *ast.ChanType:
			add(n, "a channel")
		case *ast.SendStmt:
			add(n, "sends on a channel")
		case *ast.UnaryExpr:
			if n.Op == tokens.ARROW {
				add(n, "receives from a channel")
			}
		case *ast.SelectStmt:
			add(n, "select")
		}
		return true
	})
	return found
}

// undefinedIn says what the files name that neither they nor the packages they
// import declare.
func undefinedIn(fset *tokens.FileSet, files []*ast.File) []string {
	var found, imported []string
	for _, f := range files {
		for _, imp := range f.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			imported = append(imported, path.Base(path.Dir(p))) // of a path that ends in a version
		}
	}
	// Other packages are not loaded: whatever is asked of them is taken to be
	// there. So no error but "undefined" means anything.
	conf := types.Config{
		Importer: noImports{},
		Error: func(err error) {
			if _, name, ok := strings.Cut(err.Error(), "undefined: "); ok && slices.Contains(imported, name) {
				return
			}
			if strings.Contains(err.Error(), "undefined") {
				found = append(found, err.Error())
			}
		},
	}
	conf.Check("slotmesh", fset, files, nil)
	return found
}

type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	return nil, fmt.Errorf("package %s is not loaded", path)
}
