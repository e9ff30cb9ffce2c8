package processes

import (
	"os"
	"reflect"
	"testing"

	"ration/check/emulated"
	"ration/check/harness"
	"ration/internal/abi"
)

// hostilities are what a process that may write the file can do to it while others
// have it mapped, and the answers that these and later ones may get.
var hostilities = []struct {
	name string
	do   func(path string, size int64) error
	used []string // codes that a process may get that has it mapped; "" is ok
	next []string // codes that the next process may get that opens it
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

// A file that is cut short while processes have it mapped gives them an error: none of
// them dies or waits, and none takes a value that it read for right. Only Go promises
// this: the C library installs no signal handler in its host process, so that the host
// gets the fault.
func TestHostileFile(t *testing.T) {
	emulated.NeedFaultAddress(t)
	mix := harness.GoOnly()
	for _, tc := range hostilities {
		t.Run(tc.name, func(t *testing.T) {
			for range rounds(3) {
				path := newPath(t)
				workers := []*harness.Worker{join(t, mix, 0, path, mib)}
				workers = append(workers, churning(t, mix, 3, path, 64*kib)...)
				reaper := join(t, mix, 1, path)
				reaper.OK("reaper")
				reader := start(t, harness.GoOnly(), 0)
				reader.OK("readonly %s", path)
				reader.OK("observe 0 %d", mib)
				size := sizeOf(t, path)
				if err := tc.do(path, size); err != nil {
					t.Fatal(err)
				}
				for i, w := range append(workers, reaper, reader) {
					// Work that made no step since has met no error.
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
				late := start(t, mix, 2)
				expect(t, late, -1, "open "+path, tc.next)
				for _, w := range append(workers, reaper, reader) {
					w.Kill()
				}
			}
		})
	}
}

// expect gives an order whose answer must have one of these codes; "" is ok.
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

// The cut may fall between two accounts of one device, so that a thread gets the error
// in the middle of a change while another one waits for its turn. That one must not
// wait forever.
func TestCutBetweenAccounts(t *testing.T) {
	emulated.NeedFaultAddress(t)
	mix := harness.GoOnly()
	for range rounds(10) {
		path := newPath(t)
		threaded := join(t, mix, 0, path, mib)
		// Far enough apart to be on different pages.
		other := start(t, mix, 1)
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

// accountsAt returns the offset of the first device's accounts in the file.
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
