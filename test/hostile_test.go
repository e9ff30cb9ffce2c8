package test

import (
	"os"
	"reflect"
	"testing"

	"ration/internal/abi"
	"ration/test/harness"
)

// What somebody who may write the file can do to it while it is mapped, and what
// comes of it for those who use it and those who open it next.
var hostilities = []struct {
	name string
	do   func(path string, size int64) error
	used []string // the only answers of those who use it
	next []string // and of the next to open it
}{
	{"cut to nothing", func(path string, _ int64) error { return os.Truncate(path, 0) },
		[]string{"damaged"}, []string{"", "damaged"}},
	{"cut in half", func(path string, size int64) error { return os.Truncate(path, size/2) },
		[]string{"damaged"}, []string{"size"}},
	{"cut by a page", func(path string, size int64) error { return os.Truncate(path, size-abi.PageSize) },
		[]string{"damaged"}, []string{"size"}},
	{"cut to nothing and made long again", func(path string, size int64) error {
		if err := os.Truncate(path, 0); err != nil {
			return err
		}
		return os.Truncate(path, size)
	}, []string{"damaged", "evicted"}, []string{"", "damaged", "foreign"}},
	{"cut in half and made long again", func(path string, size int64) error {
		if err := os.Truncate(path, size/2); err != nil {
			return err
		}
		return os.Truncate(path, size)
	}, []string{"damaged"}, []string{"damaged"}},
	{"made longer", func(path string, size int64) error { return os.Truncate(path, size+abi.PageSize) },
		[]string{""}, []string{"size"}},
}

// A file that is cut short under those who have it mapped gives them an error:
// nobody dies of it, nobody waits, and no figure read from it is taken for right.
// This is Go's promise alone: the library in C is a guest that touches no signals,
// so the fault is its host's.
func TestHostileFile(t *testing.T) {
	crew := harness.Native()
	for _, tc := range hostilities {
		t.Run(tc.name, func(t *testing.T) {
			for range rounds(3) {
				path := newPath(t)
				workers := []*harness.Worker{join(t, crew, 0, path, mib)}
				workers = append(workers, churning(t, crew, 3, path, 64*kib)...)
				reaper := join(t, crew, 1, path)
				reaper.OK("reaper")
				eye := start(t, harness.Native(), 0)
				eye.OK("view %s", path)
				eye.OK("watch 0 %d", mib)
				size := sizeOf(t, path)
				if err := tc.do(path, size); err != nil {
					t.Fatal(err)
				}
				for i, w := range append(workers, reaper, eye) {
					// Work that happened to be at rest has met nothing yet.
					expect(t, w, i, "stop", append(tc.used, ""))
					for _, order := range []string{"used 0", "holdings 0"} {
						expect(t, w, i, order, tc.used)
					}
				}
				for i, w := range workers {
					for _, order := range []string{"charge 0 data 512", "reap", "processes", "claim again", "leave"} {
						expect(t, w, i, order, tc.used)
					}
				}
				late := start(t, crew, 2)
				expect(t, late, -1, "open "+path, tc.next)
				for _, w := range append(workers, reaper, eye) {
					w.Kill()
				}
			}
		})
	}
}

// expect gives an order that may have only these answers; the empty one is ok.
func expect(t *testing.T, w *harness.Worker, i int, order string, codes []string) {
	t.Helper()
	got := w.Ask("%s", order)
	for _, code := range codes {
		if got.Code() == code {
			return
		}
	}
	t.Errorf("worker %d, %s: %s; want one of %q", i, order, got, codes)
}

// The cut may fall between two accounts of one device, so that a thread meets it
// in the middle of a change, while another waits for its turn. That one must not
// wait for ever.
func TestCutBetweenAccounts(t *testing.T) {
	crew := harness.Native()
	for range rounds(10) {
		path := newPath(t)
		threaded := join(t, crew, 0, path, mib)
		// Far enough apart to be on different pages.
		other := start(t, crew, 1)
		other.OK("open %s", path)
		for slot := 0; slot < 30; {
			slot = other.OK("claim far").Int("slot")
		}
		threaded.OK("threads 4 churn 0 1 4096")
		other.OK("churn 0 2 4096")
		if err := os.Truncate(path, accountsAt()+abi.PageSize); err != nil {
			t.Fatal(err)
		}
		for _, w := range []*harness.Worker{threaded, other} {
			expect(t, w, 0, "stop", []string{"damaged", ""})
		}
		threaded.Kill()
		other.Kill()
	}
}

// accountsAt is where the first device's accounts begin in the file.
func accountsAt() int64 {
	field, _ := reflect.TypeFor[abi.Region]().FieldByName("Accounts")
	return int64(field.Offset)
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}
