package cli

import (
	"bytes"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/limit"
	"ration/machine"
)

// What would have granted a request is a command that helps now: the limit of an ended job helps nobody.
func TestWhyNamesWhatHelps(t *testing.T) {
	for state, want := range map[string]string{machine.Running: "ration limit train 3g --device 0", machine.Ended: "ration run --mem 3g"} {
		var text bytes.Buffer
		a := &app{out: terminal{Writer: &text, tty: true, width: 200, writeErr: new(error)}}
		a.printRefusals([]machine.Job{{Name: "train", Path: "/jobs/train/region", State: state,
			Refusals: []machine.Refusal{{Asked: uint64(2 * limit.GiB), Held: uint64(limit.GiB), Limit: uint64(2 * limit.GiB)}}}}, 1)
		expect.True(t, strings.HasSuffix(text.String(), "The newest would have been granted with: "+want+"\n"), text.String())
	}
}
