package limit

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "7", "_", "train", "Train-2.1_b", "a..b", strings.Repeat("x", 63)} {
		if err := CheckName("--name", name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{
		"", ".", "..", ".hidden", "-rf", "a/b", "a b", "a\n", "a\x00", "é", "\xff", strings.Repeat("x", 64),
	} {
		if err := CheckName("--name", name); !errors.Is(err, ErrName) {
			t.Errorf("CheckName(%q) = %v, want %v", name, err, ErrName)
		}
	}
	const want = `--name="-rf": not a job name (use 1 to 63 letters, digits, '.', '_' or '-', the first not '.' or '-')`
	if err := CheckName("--name", "-rf"); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
