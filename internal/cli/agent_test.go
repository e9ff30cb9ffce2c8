package cli

import "testing"

// What a reaper's output is worth is kept, and no more of it.
func TestFirstBytes(t *testing.T) {
	var out firstBytes
	for range 1000 {
		if n, err := out.Write(make([]byte, 4096)); n != 4096 || err != nil {
			t.Fatal(n, err)
		}
	}
	if len(out) != 400 {
		t.Errorf("%d bytes are kept", len(out))
	}
}
