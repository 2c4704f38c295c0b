package slotmesh

import (
	"bytes"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program that README shows compiles, and prints what one expects.
func TestTheProgramOfTheReadmeRuns(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go command")
	}
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindSubmatch(text)
	require.NotNil(t, block, "a program in README.md")
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, block[1], 0o600))
	cmd := exec.CommandContext(t.Context(), goTool, "run", file) // from here, so that it imports this tree
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "alice <nil> <nil>\n", string(out))
	require.LessOrEqual(t, bytes.Count(block[1], []byte("\n")), 20, "lines that one reads at a glance")
}

// The tables of files in ARCHITECTURE name every file of the tree once, and none
// that is not there. Tests are beside what they test and are not listed.
func TestArchitectureListsTheFilesOfTheTree(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Files\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	root, resp, found := strings.Cut(section, "package `resp`")
	require.True(t, found)
	resp, others, found := strings.Cut(resp, "And the other packages:")
	require.True(t, found)
	for dir, table := range map[string]struct {
		text  string
		files []string
	}{".": {root, sources(t, ".")}, "resp": {resp, sources(t, "resp")}, "the other packages": {others, otherSources(t)}} {
		var listed []string
		for _, row := range strings.Split(table.text, "\n") {
			cells := strings.Split(row, "|")
			if len(cells) != 4 {
				continue
			}
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				listed = append(listed, name[1])
			}
		}
		require.NotEmpty(t, listed, dir)
		used := map[string]bool{}
		for _, file := range table.files {
			var by []string
			for _, pattern := range listed {
				if ok, err := filepath.Match(strings.TrimSuffix(pattern, "/"), file); err == nil && ok {
					by = append(by, pattern)
					used[pattern] = true
				}
			}
			if slices.Contains(by, file) {
				continue // by its own name, whatever patterns say besides
			}
			require.Len(t, by, 1, "%s in %s: lines of the table", file, dir)
		}
		for i, pattern := range listed {
			require.True(t, used[pattern], "%s is in the table of %s and not in the tree", pattern, dir)
			require.NotContains(t, listed[i+1:], pattern, dir)
		}
	}
}

// sources are the Go files of a folder without its tests, and in resp the
// folders that have some.
func sources(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		switch name := e.Name(); {
		case e.IsDir() && dir != ".":
			if files, _ := filepath.Glob(filepath.Join(dir, name, "*.go")); len(files) > 0 {
				names = append(names, name)
			}
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			names = append(names, name)
		}
	}
	return names
}

// otherSources are the Go files of the module, without tests, that are neither in the
// root nor in resp, with their paths.
func otherSources(t *testing.T) []string {
	t.Helper()
	var names []string
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (path == "resp" || path == "compat" || path == "testdata" || len(name) > 1 && name[0] == '.'):
			return filepath.SkipDir
		case filepath.Dir(path) != "." && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			names = append(names, filepath.ToSlash(path))
		}
		return nil
	}))
	return names
}

// The invariants that ARCHITECTURE names are functions of the simulator of that name, and
// nothing else in it finds one violated. Two are found violated on the way, by who loads
// a node's file and by who sends a message.
func TestEachInvariantIsAFunction(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Invariants\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	checks := map[string]int{}
	for _, name := range regexp.MustCompile(`\b(?:EP|OW|MG|MB|RP|LV|FM|PS|PR|R)\d+\b`).FindAllString(section, -1) {
		checks[name] = 0
	}
	require.Greater(t, len(checks), 35)
	violated := regexp.MustCompile(`^"((?:EP|OW|MG|MB|RP|LV|FM|PS|PR|R)\d+)(?:"$|: )`)
	for _, file := range []string{"sim_test.go", "simcheck_test.go", "simvote_test.go", "simreplica_test.go", "simread_test.go", "simback_test.go", "simops_test.go", "simmark_test.go", "simworld_test.go"} {
		tree, err := parser.ParseFile(gotoken.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range tree.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != gotoken.STRING {
					return true
				}
				m := violated.FindStringSubmatch(lit.Value)
				if m == nil {
					return true
				}
				if m[1] != "PS1" && m[1] != "PR3" {
					require.Regexp(t, "^check"+m[1]+"(?:[A-Z]|$)", f.Name.Name, "%s: who finds that %s is violated", file, m[1])
				}
				_, listed := checks[m[1]]
				require.True(t, listed, "%s is not in ARCHITECTURE", m[1])
				checks[m[1]]++
				return true
			})
		}
	}
	for name, n := range checks {
		require.Positive(t, n, "functions that find %s violated", name)
	}
}
