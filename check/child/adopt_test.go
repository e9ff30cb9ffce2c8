package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// asAdopter makes the test binary adopt what a shell leaves behind, kill it, and say whether
// it is gone: a process that adopts takes the children of all other tests for its own.
const asAdopter = "RATION_TEST_ADOPTER"

func adopt() error {
	KillDescendants() // before Adopt this is nobody's business
	if err := Adopt(); err != nil {
		return err
	}
	// The second shell ends at once, and leaves a program that ignores what can be ignored,
	// with a child of its own.
	out, err := exec.Command("sh", "-c", `sh -c 'trap "" TERM INT HUP; sleep 1000 & sleep 1000' >/dev/null 2>&1 & echo $!`).Output()
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, 0); err != nil {
		return fmt.Errorf("it did not outlive its shell: %w", err)
	}
	KillDescendants()
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("it goes on: %v", err)
	}
	if left := childPIDs(); len(left) > 0 {
		return fmt.Errorf("these go on: %v", left)
	}
	return nil
}

func TestKillDescendants(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asAdopter+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
