package cli

import (
	"testing"

	"ration/check/expect"
	"ration/internal/usage"
)

// In the HTML report a GPU has the name that people know; a GPU that was replaced keeps its UUID.
func TestNamesOfGPUs(t *testing.T) {
	lines := []usage.Line{{GPU: "GPU-a"}, {GPU: "GPU-gone"}}
	nameGPUs(lines, map[string]string{"GPU-a": "0 NVIDIA H200"})
	expect.True(t, lines[0].GPU == "0 NVIDIA H200" && lines[1].GPU == "GPU-gone", lines)
}
