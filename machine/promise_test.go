package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
)

var update = flag.Bool("update", false, "write api.txt anew")

// Every exported name is in api.txt, as it is declared there: a change of one is
// seen in review.
func TestAPI(t *testing.T) {
	got := exported(t)
	if *update {
		expect.OK(t, os.WriteFile("api.txt", got, 0o644))
	}
	want, err := os.ReadFile("api.txt")
	expect.OK(t, err)
	expect.True(t, bytes.Equal(got, want),
		"the exported names are not those of api.txt (if that is meant, and keeps the promise of the package comment: go test ./machine -run TestAPI -update)", got)
}

// exported returns the declarations of all exported names, without comments.
func exported(t *testing.T) []byte {
	t.Helper()
	fset := token.NewFileSet()
	paths, err := filepath.Glob("*.go")
	expect.OK(t, err)
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, 0)
		expect.OK(t, err)
		files = append(files, f)
	}
	p, err := doc.NewFromFiles(fset, files, "ration/machine")
	expect.OK(t, err)
	var out bytes.Buffer
	write := func(decl ast.Decl) {
		if f, ok := decl.(*ast.FuncDecl); ok {
			f.Body = nil
		}
		expect.OK(t, format.Node(&out, fset, decl))
		out.WriteString("\n\n")
	}
	for _, v := range slices.Concat(p.Consts, p.Vars) {
		write(v.Decl)
	}
	for _, f := range p.Funcs {
		write(f.Decl)
	}
	for _, typ := range p.Types {
		write(typ.Decl)
		for _, f := range slices.Concat(typ.Funcs, typ.Methods) {
			write(f.Decl)
		}
	}
	return append(bytes.TrimSpace(out.Bytes()), '\n')
}

// Each error is returned where its comment says so.
func TestErrors(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	t.Setenv(job.EnvRegion, "")
	offset := func(field string, in reflect.Type) uintptr { f, _ := in.FieldByName(field); return f.Offset }
	header := reflect.TypeFor[abi.Header]()
	for name, c := range map[string]struct {
		want   error
		change func(path string, content []byte) []byte
	}{
		"empty":       {ErrNotReady, func(string, []byte) []byte { return nil }},
		"foreign":     {ErrForeign, func(_ string, b []byte) []byte { b[0]++; return b }},
		"version":     {ErrVersion, func(_ string, b []byte) []byte { b[offset("Version", header)]++; return b }},
		"cut-short":   {ErrSize, func(_ string, b []byte) []byte { return b[:len(b)-1] }},
		"lost-tail":   {ErrDamaged, func(_ string, b []byte) []byte { b[offset("Tail", reflect.TypeFor[abi.Region]())]++; return b }},
		"limits-gone": {ErrLimits, func(_ string, b []byte) []byte { b[offset("Flags", header)] = abi.LimitsBeside; return b }},
	} {
		path := makeRegion(t, name)
		content, err := os.ReadFile(path)
		expect.OK(t, err)
		expect.OK(t, os.WriteFile(path, c.change(path, content), 0o600))
		j, err := ReadJob(name)
		expect.True(t, errors.Is(err, c.want) && j.Err() == err && j.Name == name, name, j, err, "want", c.want)
	}
	if _, err := ReadJob("nowhere"); !errors.Is(err, ErrNoJob) {
		t.Errorf("a job that is not there: %v", err)
	}
	expect.OK(t, os.Chmod(job.Folder(), 0o777))
	if _, err := Read(); !errors.Is(err, ErrFolder) {
		t.Errorf("a folder that everybody can write: %v", err)
	}
}

// makeRegion makes a job with a limit, and returns the path of its region, which
// this process does not have open any more.
func makeRegion(t *testing.T, name string) string {
	t.Helper()
	path, err := job.MakeFolder(name)
	expect.OK(t, err)
	var opt region.Options
	opt.Limits.Memory[0] = abi.MakeLimit(1 << 30)
	r, err := region.Open(path, opt)
	expect.OK(t, err)
	expect.OK(t, r.Close())
	return path
}

// Reading leaves every byte as it is, also in a job that this process is in.
func TestReadsOnly(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	t.Setenv(job.EnvRegion, "")
	path := makeRegion(t, "train")
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	defer r.Close()
	slot, err := r.Claim("train.py")
	expect.OK(t, err)
	expect.OK(t, slot.Charge(0, abi.Data, 1<<20))
	// One descriptor, open to the end: closing one would drop this process's locks.
	f, err := os.Open(path)
	expect.OK(t, err)
	defer f.Close()
	content := func() []byte {
		st, err := f.Stat()
		b := make([]byte, st.Size())
		_, e := f.ReadAt(b, 0)
		expect.Must(t, errors.Join(err, e) == nil, err, e)
		return b
	}
	before := content()
	m, err := Read()
	expect.Must(t, err == nil && len(m.Jobs) == 1 && len(m.Jobs[0].Processes) == 1 && !m.Jobs[0].ReadOnly, m, err)
	n := m.Jobs[0].Reads.Reads
	expect.True(t, n != 0, "its own reads are not counted")
	expect.True(t, bytes.Equal(before, content()), "reading wrote")
}

// What is written as JSON can be read as JSON.
func TestJSON(t *testing.T) {
	m := Machine{Folder: "/run/ration", Jobs: []Job{
		{Name: "train", Path: "/run/ration/train/region", Devices: []Device{{Device: 1, Limited: true, Limit: 5}},
			Processes: []Process{{PID: 7, State: Dead, Holdings: []Holding{{Total: 3, Data: 3}}}}, Reaped: []Process{},
			Refusals: []Refusal{{Time: timeOf(9), Asked: 8, Top: []Holder{{PID: 7, Bytes: 3}}}}},
		{Path: "/elsewhere", Error: "gone"},
	}}
	text, err := json.Marshal(m)
	expect.OK(t, err)
	var back Machine
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(m, back) {
		t.Errorf("%s came back as %+v, %v", text, back, err)
	}
	j := &back.Jobs[1]
	expect.True(t, j.Err() != nil && j.Err().Error() == "gone" && back.Jobs[0].Err() == nil, "errors came back as", back.Jobs[0].Err(), "and", j.Err())
}

// Goroutines may read at once.
func TestReadTogether(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	t.Setenv(job.EnvRegion, "")
	makeRegion(t, "train")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				m, err := Read()
				expect.True(t, err == nil && len(m.Jobs) == 1 && m.Jobs[0].Err() == nil, m, err)
			}
		})
	}
	all.Wait()
}
