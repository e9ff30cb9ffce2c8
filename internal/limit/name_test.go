package limit

import (
	"errors"
	"strings"
	"testing"

	"ration/check/expect"
)

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "7", "_", "train", "Train-2.1_b", "a..b", strings.Repeat("x", 63)} {
		expect.Equal(t, CheckName("--name", name), nil)
	}
	for _, name := range []string{
		"", ".", "..", ".hidden", "-rf", "a/b", "a b", "a\n", "a\x00", "é", "\xff", strings.Repeat("x", 64),
	} {
		err := CheckName("--name", name)
		expect.True(t, errors.Is(err, ErrName), "CheckName(", name, ")", err, ErrName)
	}
	const want = `--name="-rf": not a job name (use 1 to 63 letters, digits, '.', '_' or '-', the first not '.' or '-')`
	err := CheckName("--name", "-rf")
	expect.True(t, err != nil && err.Error() == want, err, want)
}
