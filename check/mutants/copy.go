package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Bounds of one build, and of one test. A test that does not end has not noticed the mutant: on a busy
// machine it might not end without it either.
const (
	buildTimeout = 10 * time.Minute
	testTimeout  = 2 * time.Minute
)

// work is a copy of the repository, in which mutants are built. It is kept in build, so that the next run
// builds only what changed since.
type work struct {
	ctx    context.Context // ends what runs in the copy
	dir    string
	passes map[string]error // by test: whether it passes without a mutant
	output map[string][]byte
}

// result is what became of a mutant.
type result struct {
	m       mutant
	err     error // nil: a test noticed it, or cannot run here
	skipped bool  // it cannot
	output  []byte
	took    time.Duration
}

func (r result) String() string {
	if r.err != nil {
		return fmt.Sprintf("FAILED   %s: %v", r.m.name, r.err)
	}
	return fmt.Sprintf("killed   %s, by %s", r.m.name, r.m.test())
}

// makeCopy makes a copy of the repository's files, committed or not, or makes an earlier copy the same.
func makeCopy(ctx context.Context, root, dir string) (*work, error) {
	w := &work{ctx: ctx, dir: dir, passes: map[string]error{}, output: map[string][]byte{}}
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the repository's files: %w", err)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := takeBuild(root, dir); err != nil {
			return nil, fmt.Errorf("copying build: %w", err)
		}
	}
	known := map[string]bool{}
	for _, name := range strings.Split(strings.TrimRight(string(names), "\x00"), "\x00") {
		if err := w.takeFile(root, name); errors.Is(err, fs.ErrNotExist) {
			continue // removed, and not committed
		} else if err != nil {
			return nil, fmt.Errorf("copying the repository: %w", err)
		}
		known[name] = true
	}
	if err := w.removeOthers(known); err != nil {
		return nil, fmt.Errorf("removing from %s: %w", dir, err)
	}
	// A clone's history is asked for by the tests of the repository only.
	out, err := w.run(buildTimeout, "make", "-s", "native")
	if err != nil {
		return nil, fmt.Errorf("building in %s: %w\n%s", dir, err, tail(out))
	}
	return w, nil
}

// takeFile copies a file, unless the copy is the same: make goes by the times.
func (w *work) takeFile(root, name string) error {
	from, to := filepath.Join(root, name), filepath.Join(w.dir, name)
	st, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		_ = os.Remove(to)
		return errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.Symlink(target, to))
	}
	if !st.Mode().IsRegular() {
		return nil
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	has, missing := os.ReadFile(to)
	if missing == nil && bytes.Equal(has, text) {
		return os.Chmod(to, st.Mode().Perm())
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, st.Mode().Perm()), os.Chmod(to, st.Mode().Perm())); err != nil {
		return err
	}
	if missing == nil {
		return nil // it has changed now, whatever its time was: what was built of it is old
	}
	return os.Chtimes(to, st.ModTime(), st.ModTime())
}

// removeOthers removes what is neither the repository's nor built.
func (w *work) removeOthers(known map[string]bool) error {
	return filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(w.dir, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "build" || name == "bin" || name == "internal/embedded/files"):
			return fs.SkipDir
		case d.IsDir() || known[name]:
			return nil
		}
		return os.Remove(path)
	})
}

// notBuilt are folders of build that no test of a mutant needs. Those of other targets can be large.
var notBuilt = []string{"mutants", "log", "gpu-test", "stage", "image", "reproducible", "test-install", "test-systemd", "test-slurm", "amd64", "arm64"}

// takeBuild copies what the repository has built, with its times, so that a first run need not build it
// again, but for the library, which is built in another way here. Files for make name their targets by
// whole paths.
func takeBuild(root, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "build"), 0o755); err != nil {
		return err
	}
	built, err := os.ReadDir(filepath.Join(root, "build"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range built {
		name := e.Name()
		if slices.Contains(notBuilt, name) || strings.HasPrefix(name, "san-") || strings.Contains(name, "shim") || strings.HasPrefix(name, "libration") || err != nil {
			continue
		}
		err = exec.Command("cp", "-a", filepath.Join(root, "build", name), filepath.Join(dir, "build")).Run()
	}
	if err != nil {
		return err
	}
	return filepath.WalkDir(filepath.Join(dir, "build"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".d" {
			return err
		}
		text, err := os.ReadFile(path)
		return errors.Join(err, os.WriteFile(path, bytes.ReplaceAll(text, []byte(root+"/"), []byte(dir+"/")), 0o644))
	})
}

// run runs a command in the copy, and returns what it printed.
func (w *work) run(timeout time.Duration, name string, arg ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(w.ctx, timeout)
	defer cancel()
	c := exec.CommandContext(ctx, name, arg...)
	c.Dir = w.dir
	c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS") })
	// C without optimisation across files, which takes most of the time to build the library.
	c.Env = append(c.Env, "PWD="+w.dir, "CFLAGS=-g -O1", "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -buildvcs=false"))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	out, err := c.CombinedOutput()
	return out, errors.Join(ctx.Err(), err)
}

// try applies a mutant, runs its test and takes the mutant away.
func (w *work) try(m mutant) (r result) {
	began := time.Now()
	r.m = m
	defer func() { r.took = time.Since(began) }()
	path := filepath.Join(w.dir, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		r.err = err
		return r
	}
	changed, err := m.apply(string(text))
	if err != nil {
		r.err = err
		return r
	}
	if r.output, r.err = w.passesWithout(m); r.err != nil {
		return r
	}
	if r.err = os.WriteFile(path, []byte(changed), 0o644); r.err != nil {
		return r
	}
	defer func() { r.err = errors.Join(r.err, w.restore(m, text)) }()
	if r.output, err = w.compile(m); err != nil {
		r.err = fmt.Errorf("it does not compile: %w", err)
		return r
	}
	if r.output, err = w.prepare(m); err != nil {
		r.err = fmt.Errorf("what its test needs does not build: %w", err)
		return r
	}
	switch r.output, err = w.test(m); {
	case w.ctx.Err() != nil:
		r.err = w.ctx.Err()
	case err == nil && bytes.Contains(w.output[m.test()], []byte("--- SKIP")):
		r.skipped = true
	case err == nil:
		r.err = fmt.Errorf("SURVIVED: %s passes with %q for %q in %s", m.test(), m.new, m.old, m.file)
	case errors.Is(err, context.DeadlineExceeded) || bytes.Contains(r.output, []byte("panic: test timed out")):
		r.err = fmt.Errorf("%s does not end with it, which is not to fail (have it end, or take another mutant)", m.test())
	}
	return r
}

// restore takes a mutant away, from what it was built into as well: a Go test finds the library as built.
func (w *work) restore(m mutant, text []byte) error {
	err := os.WriteFile(filepath.Join(w.dir, m.file), text, 0o644)
	if err == nil && m.kind == "native" && filepath.Ext(m.file) != ".go" {
		_, err = w.prepare(m)
	}
	return err
}

// passesWithout runs a mutant's test without it, once for all mutants that it is to notice.
func (w *work) passesWithout(m mutant) ([]byte, error) {
	key := m.test()
	if _, known := w.passes[key]; !known {
		out, err := w.prepare(m)
		if err == nil {
			out, err = w.test(m)
		}
		if err == nil && (bytes.Contains(out, []byte("no tests to run")) || bytes.Contains(out, []byte("shim: 0 passed"))) {
			err = errors.New("there is no such test")
		}
		if err != nil {
			err = fmt.Errorf("its test does not pass without it: %w", err)
		}
		w.passes[key], w.output[key] = err, out
	}
	return w.output[key], w.passes[key]
}

// compile compiles the changed file alone, so that a test fails for nothing but what it sees.
func (w *work) compile(m mutant) ([]byte, error) {
	folder := filepath.Dir(m.file)
	switch filepath.Ext(m.file) {
	case ".go":
		module := folder
		for module != "." && !exists(filepath.Join(w.dir, module, "go.mod")) {
			module = filepath.Dir(module)
		}
		rel, err := filepath.Rel(module, folder)
		if err != nil {
			return nil, err
		}
		return w.run(buildTimeout, "go", "-C", module, "build", "-o", os.DevNull, "./"+rel)
	case ".c":
		if within, ok := strings.CutPrefix(m.file, "shim/"); ok {
			return w.run(buildTimeout, "make", "-s", "-C", "shim", filepath.Join(w.dir, "build/shim", strings.TrimSuffix(within, ".c")+".o"))
		}
		return w.run(buildTimeout, "make", "-s", "-C", folder, "all", "OUT="+filepath.Join(w.dir, "build"))
	case ".h", ".def":
		return w.run(buildTimeout, "make", "-s", "-C", "shim", "all")
	}
	return nil, nil
}

// prepare builds what a test runs beside Go.
func (w *work) prepare(m mutant) ([]byte, error) {
	switch m.kind {
	case "native":
		return w.run(buildTimeout, "make", "-s", "native")
	case "shim":
		arg := []string{"-s", "-C", "shim", "all", "driver"}
		for _, name := range m.args {
			if exists(filepath.Join(w.dir, "shim/test", name+".c")) {
				arg = append(arg, filepath.Join(w.dir, "build/shim/test", name))
				continue
			}
			for _, of := range []string{"job", "look", "next", "libwrap.so"} { // for scripts
				arg = append(arg, filepath.Join(w.dir, "build/shim/test", of))
			}
		}
		return w.run(buildTimeout, "make", arg...)
	}
	return nil, nil
}

// test runs a mutant's test.
func (w *work) test(m mutant) ([]byte, error) {
	goTest := func(folder, name, run string) ([]byte, error) { // which is built first
		return w.run(buildTimeout+testTimeout, "go", "-C", folder, "test", "-v", "-count=1", "-vet=off", "-timeout="+testTimeout.String(), "-run", run, name)
	}
	switch m.kind {
	case "shim":
		names := make([]string, len(m.args))
		for i, name := range m.args {
			names[i] = filepath.Base(name)
		}
		return w.run(testTimeout, "env", "ONLY=^("+strings.Join(names, "|")+")$", "sh", "shim/test/run.sh", "build/libration.so", "build/fakegpu", "build/shim/test")
	case "module":
		return goTest(m.args[0], m.args[1], m.args[2])
	}
	return goTest(".", m.args[0], m.args[1])
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
