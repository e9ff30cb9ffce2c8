package machine

import (
	"errors"
	"testing"
)

// A look is repeated until it agrees, and no more often than it may be.
func TestUntil(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name   string
		look   func(n int) (bool, error)
		exact  bool
		looked int
		err    error
	}{
		{"at once", func(int) (bool, error) { return true, nil }, true, 1, nil},
		{"at the third", func(n int) (bool, error) { return n == 3, nil }, true, 3, nil},
		{"at the last", func(n int) (bool, error) { return n == looks, nil }, true, looks, nil},
		{"never", func(int) (bool, error) { return false, nil }, false, looks, nil},
		{"an error", func(int) (bool, error) { return false, broken }, false, 1, broken},
	} {
		looked := 0
		exact, err := until(looks, func() (bool, error) { looked++; return c.look(looked) })
		if exact != c.exact || looked != c.looked || !errors.Is(err, c.err) {
			t.Errorf("%s: %v after %d looks, %v", c.name, exact, looked, err)
		}
	}
}
