package processes

import (
	"os"
	"reflect"
	"slices"
	"testing"

	"ration/check/expect"
	"ration/check/observer"
	"ration/check/testenv"
	"ration/internal/abi"
)

// cut sets the length of a file to each of these sizes in turn.
func cut(t *testing.T, path string, sizes ...int64) {
	t.Helper()
	for _, size := range sizes {
		expect.OK(t, os.Truncate(path, size))
	}
}

// A file that is cut short while processes have it mapped gives them an error: none of
// them dies, waits or uses a value from it. Only Go promises this: the C library installs
// no signal handler in its host process, so the host gets the fault.
func TestHostileFile(t *testing.T) {
	testenv.NeedFaultAddress(t)
	size := int64(reflect.TypeFor[abi.Region]().Size())
	mix := goOnly()
	for _, tc := range []struct {
		name  string
		sizes []int64  // to which another process cuts the file, one after the other
		used  []string // codes that a process may get that has it mapped; "" is ok
		next  []string // codes that the next process may get that opens it
	}{
		{"cut to nothing", []int64{0}, []string{"damaged"}, []string{"", "damaged"}},
		{"cut in half", []int64{size / 2}, []string{"damaged"}, []string{"size"}},
		{"cut by a page", []int64{size - abi.PageSize}, []string{"damaged"}, []string{"size"}},
		{"cut to nothing and made long again", []int64{0, size}, []string{"damaged", "evicted"}, []string{"", "damaged", "foreign"}},
		{"cut in half and made long again", []int64{size / 2, size}, []string{"damaged"}, []string{"damaged"}},
		{"made longer", []int64{size + abi.PageSize}, []string{""}, []string{"size"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for range rounds(3) {
				path := newPath(t)
				workers := []*worker{join(t, mix, 0, path, mib)}
				workers = append(workers, churning(t, mix, 3, path, 64*kib)...)
				reaper := join(t, mix, 1, path)
				reaper.OK("reaper")
				reader := start(t, goOnly(), 0)
				reader.OK("readonly %s", path)
				reader.OK("observe 0 %d", mib)
				cut(t, path, tc.sizes...)
				for i, w := range append(workers, reaper, reader) {
					// Work that made no step since has met no error.
					expected(t, w, i, "stop", append(tc.used, ""))
					for _, order := range []string{"used 0", "holdings 0"} {
						expected(t, w, i, order, tc.used)
					}
				}
				for i, w := range workers {
					for _, order := range []string{"charge 0 data 512", "reap", "processes", "claim again", "leave"} {
						expected(t, w, i, order, tc.used)
					}
				}
				late := start(t, mix, 2)
				expected(t, late, -1, "open "+path, tc.next)
				for _, w := range append(workers, reaper, reader) {
					w.Kill()
				}
			}
		})
	}
}

// expected gives an order whose answer must have one of these codes; "" is ok.
func expected(t *testing.T, w *worker, i int, order string, codes []string) {
	t.Helper()
	got := w.Ask("%s", order)
	expect.True(t, slices.Contains(codes, got.Code()), "worker", i, order, got, "want one of", codes)
}

// The cut may fall between two accounts of one device, so that a thread gets the error
// in the middle of a change while another one waits for its turn. That one must not
// wait forever.
func TestCutBetweenAccounts(t *testing.T) {
	testenv.NeedFaultAddress(t)
	mix := goOnly()
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
		cut(t, path, observer.Offset("Accounts")+abi.PageSize)
		for _, w := range []*worker{threaded, other} {
			expected(t, w, 0, "stop", []string{"damaged", ""})
		}
		threaded.Kill()
		other.Kill()
	}
}
