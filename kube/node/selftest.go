package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"ration/internal/embedded"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/region"
)

// ErrLibrary is returned if the library that containers get does not hold a program.
var ErrLibrary = errors.New("the library does not hold a program to its limit, so no GPU is handed out")

// SelfTest checks the library that containers get: a program on the stand-in driver loads it, is
// refused what exceeds its limit, and is counted. The dynamic linker ignores a library that it
// cannot load, for example one of another architecture, and the program would run without a limit.
func SelfTest() error {
	folder, err := embedded.Ration.Unpack()
	if err != nil {
		return err
	}
	return selfTest(filepath.Join(folder, "libration.so"))
}

// The test program takes selfTestSteps. The limit has space for all but the last.
const (
	selfTestLimit  = 4 * limit.GiB
	selfTestPeak   = 2 * limit.GiB
	selfTestWithin = 30 * time.Second
)

var selfTestSteps = []string{"1g", "1g", "3g"}

func selfTest(library string) error {
	driver, err := embedded.FakeGPU.Unpack()
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "ration-self-test-")
	if err != nil {
		return fmt.Errorf("making a folder for the test of the library: %w", err)
	}
	defer os.RemoveAll(scratch)
	ctx, cancel := context.WithTimeout(context.Background(), selfTestWithin)
	defer cancel()
	path := filepath.Join(scratch, "region")
	cmd := exec.CommandContext(ctx, filepath.Join(driver, "fake-train"), selfTestSteps...)
	cmd.Env = []string{"FAKEGPU=h200", "FAKEGPU_STATE=" + filepath.Join(scratch, "gpu"), "FAKEGPU_QUIET=1", "LD_LIBRARY_PATH=" + driver,
		launch.PreloadVariable + "=" + library, launch.EnvRegion + "=" + path, limit.EnvMemory + "=" + selfTestLimit.Exact()}
	text, err := cmd.CombinedOutput()
	failed := func(what string) error {
		return fmt.Errorf("testing %s: %w: %s: %s (is the image of this processor's architecture?)", library, ErrLibrary, what, strings.TrimSpace(string(text)))
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return failed("a program got more than its limit")
	case !errors.As(err, &exit) || exit.ExitCode() != 1:
		return failed(fmt.Sprintf("the test program ended: %v", err))
	}
	r, err := region.OpenReadOnly(path)
	if err != nil {
		return failed(fmt.Sprintf("the program was not counted: %v", err))
	}
	defer r.Close()
	if why := miscounted(limit.Size(r.Peak(0)), r.Refused(0)); why != "" {
		return failed(why)
	}
	return nil
}

// miscounted says why these are not the counts of the test program, or returns "".
func miscounted(peak limit.Size, refused uint64) string {
	if peak >= selfTestPeak && peak <= selfTestLimit && refused == 1 {
		return ""
	}
	return fmt.Sprintf("of at most %v it counted %v, and %d refusals instead of one", selfTestLimit, peak, refused)
}
