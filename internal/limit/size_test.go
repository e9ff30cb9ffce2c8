package limit

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"

	"ration/check/expect"
)

func TestSizeString(t *testing.T) {
	for _, tt := range []struct {
		in            Size
		people, exact string
	}{
		{0, "0 B", "0"},
		{1, "1 B", "1"},
		{1023, "1023 B", "1023"},
		{1024, "1 KiB", "1k"},
		{1025, "1025 B", "1025"},
		{1536, "1.5 KiB", "1536"},
		{518 * MiB, "518 MiB", "518m"},
		{1536 * MiB, "1.5 GiB", "1536m"},
		{10 * GiB, "10 GiB", "10g"},
		{10082 * MiB, "10082 MiB", "10082m"},
		{143771 * MiB, "143771 MiB", "143771m"},
		{MiB - 1, "~1.00 MiB", "1048575"},
		{GiB + 1, "~1.00 GiB", "1073741825"},
		{GiB - 1, "~1.00 GiB", "1073741823"},
		{1234567890, "~1.15 GiB", "1234567890"},
		{999999, "999999 B", "999999"},
		{1000001, "~976.56 KiB", "1000001"},
		{math.MaxUint64, "~16777216.00 TiB", "18446744073709551615"},
	} {
		expect.Equal(t, tt.in.String(), tt.people, "Size(", uint64(tt.in), ").String() =")
		expect.Equal(t, tt.in.Exact(), tt.exact, "Size(", uint64(tt.in), ").Exact() =")
	}
}

func ExampleParseSize() {
	for _, text := range []string{"10g", "1.5GiB", "10gb!"} {
		size, err := ParseSize(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(size, size.Exact())
	}
	// Output:
	// 10 GiB 10g
	// 1.5 GiB 1536m
	// "10gb!": not a size (use bytes or a number with k, m, g or t, like 10g, 1024m or 1.5g)
}

var sizePattern = regexp.MustCompile(`^(0[xX][0-9a-fA-F]+|[0-9]+(\.[0-9]+)?)(([kmgtKMGT])[iI]?[bB]?)?$`)

// wantSize does the same as ParseSize by other means: a pattern and rational numbers.
func wantSize(s string) (Size, bool) {
	m := sizePattern.FindStringSubmatch(s)
	if m == nil || m[2] != "" && m[4] == "" {
		return 0, false
	}
	value, _ := new(big.Rat).SetString(m[1])
	if m[4] != "" {
		power := strings.Index("kmgt", strings.ToLower(m[4])) + 1
		value.Mul(value, new(big.Rat).SetInt64(1<<(10*power)))
	}
	floor := new(big.Int).Quo(value.Num(), value.Denom())
	if !floor.IsUint64() || floor.Sign() == 0 && value.Sign() != 0 {
		return 0, false
	}
	return Size(floor.Uint64()), true
}

// badValues are inputs that every parser here must reject.
var badValues = []string{
	"10gb!", "-1", "18446744073709551616", "", "101%", "0%", " 10 g", "1e9", "0x", "٣g", "10g\x00", "\x00", "3\u212a",
}

func FuzzParseSize(f *testing.F) {
	for _, s := range badValues {
		f.Add(s)
	}
	for _, s := range []string{"0", "10g", "10GiB", "1.5g", "0.1t", "1048576k", "18446744073709551615", "16777215.99t", "0x10g", "0x1b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		size, err := ParseSize(s)
		want, ok := wantSize(s)
		expect.Must(t, ok == (err == nil) && size == want, "ParseSize(", s, ")", size, err, want, ok)
		back, err := ParseSize(size.Exact())
		expect.True(t, err == nil && back == size, size.Exact(), "reads back as", back, err, size)
		shown := strings.TrimSuffix(strings.Replace(size.String(), " ", "", 1), "B")
		if strings.HasPrefix(shown, "~") {
			return
		}
		if back, err := ParseSize(shown); err != nil || back != size {
			t.Errorf("%d is shown as exactly %q, which is %d, %v", uint64(size), size, back, err)
		}
	})
}
