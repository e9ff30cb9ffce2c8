package processes

import (
	"fmt"

	"ration/internal/abi"
)

// scenario is a sequence of orders that leads a process to a failpoint. Its steps name
// the worker: v is the victim, which dies or stops at the failpoint; a is a process
// that lives on; d1 to d3 are killed ("d1 kill") before the victim reaps them.
type scenario struct {
	steps  []step
	passes int  // how often the steps pass the failpoint
	holds  int  // the most bytes of a device that the victim can hold there
	first  bool // the victim makes the region
}

type step struct{ worker, order string }

func v(format string, arg ...any) step { return step{"v", fmt.Sprintf(format, arg...)} }
func a(format string, arg ...any) step { return step{"a", fmt.Sprintf(format, arg...)} }

// Every scenario has this limit on each of its devices.
const (
	scenarioLimit   = mib
	scenarioDevices = 3
)

// scenarioFor returns the scenario of a failpoint. Worker a has made the region before
// the first step, unless the victim makes it.
func scenarioFor(p abi.Failpoint, path string) scenario {
	limits := limitFields(scenarioLimit, scenarioLimit, scenarioLimit)
	open := v("open %s%s", path, limits)
	switch p {
	case abi.InitOpened, abi.InitSized, abi.InitMapped, abi.InitWon, abi.InitFields, abi.InitDone:
		return scenario{steps: []step{open}, passes: 1, first: true}
	case abi.InitLimits:
		return scenario{steps: []step{open}, passes: scenarioDevices, first: true}

	case abi.ClaimLocked, abi.ClaimJoining, abi.ClaimFilled, abi.ClaimActive:
		return scenario{steps: []step{
			// All slots have been the survivor's before, so a slot that the victim has not
			// filled in still has the PID of a living process.
			a("claims %d", abi.FenceSlot-1), open, v("claim 1"), v("claim 2"), v("claim 3"),
		}, passes: 3}

	case abi.TurnTaken, abi.ChangeRead, abi.ChangeAnnounced, abi.ChangeApplied, abi.ChangeBooked, abi.SeqlockB, abi.SeqlockTurned, abi.SeqlockA, abi.TurnLeft:
		return scenario{steps: []step{
			open, v("claim v"), v("charge 0 data %d", piece), v("charge 0 module %d", piece), v("return 0 data %d", piece),
		}, passes: 3, holds: 2 * piece}

	case abi.ReadCopied:
		return scenario{steps: []step{
			open, v("claim v"), v("charge 0 data %d", piece), v("holdings 0"), v("holdings 0"), v("holdings 0"),
		}, passes: 3, holds: piece}

	case abi.NoteRead, abi.ChangeNoted:
		// The ledger word must name another worker's change before each of the victim's.
		return scenario{steps: []step{
			open, v("claim v"),
			a("charge 0 data %d", piece), v("charge 0 data %d", piece),
			a("return 0 data %d", piece), v("charge 0 data %d", piece),
			a("charge 0 data %d", piece), v("return 0 data %d", piece),
		}, passes: 3, holds: 2 * piece}

	case abi.RefuseTicket, abi.RefuseWritten:
		return scenario{steps: []step{
			open, v("claim v"), a("charge 0 data %d", scenarioLimit),
			v("charge 0 data 1"), v("charge 0 data 1"), v("charge 0 data 1"),
		}, passes: 3}

	case abi.ReapFenced:
		// Each of the dead was refused last, the first two with something in hand.
		return scenario{steps: append(dead(path, func(i int) (orders []string) {
			if i < 2 {
				orders = append(orders, fmt.Sprintf("charge 0 data %d", piece))
			}
			return append(orders, fmt.Sprintf("charge 0 data %d", 2*scenarioLimit))
		}), open, v("reap")), passes: 3}

	case abi.ReapCondemned, abi.ReapJudged, abi.ReapAnnounced, abi.ReapNoted, abi.ReapApplied, abi.ReapBooked, abi.ReapSettled, abi.ReapFreed,
		abi.DeathTicket, abi.DeathWritten:
		// Each of the dead holds something of each device.
		return scenario{steps: append(dead(path, func(int) (orders []string) {
			for d := range scenarioDevices {
				orders = append(orders, fmt.Sprintf("charge %d data %d", d, piece))
			}
			return orders
		}), open, v("reap")), passes: 3}

	case abi.LeaveReturned, abi.LeaveFreed, abi.LeaveUnlocked:
		return scenario{steps: []step{
			open, v("claim 1"), v("charge 0 data %d", piece), v("leave"),
			v("claim 2"), v("charge 0 data %d", piece), v("leave"),
			v("claim 3"), v("charge 0 data %d", piece), v("leave"),
		}, passes: 3, holds: piece}

	case abi.LimitSet:
		return scenario{steps: []step{
			open, v("limit 0 %d", scenarioLimit), v("limit 1 %d", scenarioLimit), v("limit 2 %d", scenarioLimit),
		}, passes: 3}
	}
	return scenario{}
}

// dead returns steps that leave three dead processes, each of which was given some
// orders first.
func dead(path string, orders func(i int) []string) (steps []step) {
	var kills []step
	for i := range 3 {
		worker := fmt.Sprintf("d%d", i+1)
		for _, order := range append([]string{"open " + path, "claim " + worker}, orders(i)...) {
			steps = append(steps, step{worker, order})
		}
		kills = append(kills, step{worker, "kill"})
	}
	return append(steps, kills...)
}
