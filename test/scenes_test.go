package test

import (
	"fmt"

	"ration/internal/abi"
)

// A scene leads a process to a point of a protocol. Its steps name who acts: v
// is the victim, which dies or stops at the point; a is a process that lives on;
// d1 to d3 are killed ("d1 kill") before the victim comes to reap them.
type scene struct {
	steps  []step
	passes int  // how often the steps pass the point
	holds  int  // the most the victim can hold of a device while it is at the point
	first  bool // the victim makes the region
}

type step struct{ who, order string }

func v(format string, arg ...any) step { return step{"v", fmt.Sprintf(format, arg...)} }
func a(format string, arg ...any) step { return step{"a", fmt.Sprintf(format, arg...)} }

// Every scene has this limit on each of its devices.
const (
	sceneLimit   = mib
	sceneDevices = 3
	piece        = 64 * kib
)

// sceneOf leads to a point. The steps are for a region that a has made, unless
// the victim comes first; the victim opens and claims by steps of its own.
func sceneOf(p abi.Failpoint, path string) scene {
	limits := bring(sceneLimit, sceneLimit, sceneLimit)
	open := v("open %s%s", path, limits)
	switch p {
	case abi.InitOpened, abi.InitSized, abi.InitMapped, abi.InitWon, abi.InitFields, abi.InitDone:
		return scene{steps: []step{open}, passes: 1, first: true}
	case abi.InitLimits:
		return scene{steps: []step{open}, passes: sceneDevices, first: true}

	case abi.ClaimLocked, abi.ClaimJoining, abi.ClaimFilled, abi.ClaimActive:
		return scene{steps: []step{
			// All slots have been the survivor's, so what the victim does not get to
			// write in its own is the name of a process that lives.
			a("claims %d", abi.Slots-1), open, v("claim 1"), v("claim 2"), v("claim 3"),
		}, passes: 3}

	case abi.TurnTaken, abi.ChangeAnnounced, abi.ChangeApplied, abi.ChangeBooked, abi.SeqlockB, abi.SeqlockTurned, abi.SeqlockA, abi.TurnLeft:
		return scene{steps: []step{
			open, v("claim v"), v("charge 0 data %d", piece), v("charge 0 module %d", piece), v("return 0 data %d", piece),
		}, passes: 3, holds: 2 * piece}

	case abi.NoteRead, abi.ChangeNoted:
		// The word must name somebody else's change before each of the victim's.
		return scene{steps: []step{
			open, v("claim v"),
			a("charge 0 data %d", piece), v("charge 0 data %d", piece),
			a("return 0 data %d", piece), v("charge 0 data %d", piece),
			a("charge 0 data %d", piece), v("return 0 data %d", piece),
		}, passes: 3, holds: 2 * piece}

	case abi.RefuseTicket, abi.RefuseWritten:
		return scene{steps: []step{
			open, v("claim v"), a("charge 0 data %d", sceneLimit),
			v("charge 0 data 1"), v("charge 0 data 1"), v("charge 0 data 1"),
		}, passes: 3}

	case abi.ReapJudged, abi.ReapAnnounced, abi.ReapNoted, abi.ReapApplied, abi.ReapBooked, abi.ReapSettled, abi.ReapFreed:
		return scene{steps: append(dead(path), open, v("reap")), passes: 3}

	case abi.LeaveReturned, abi.LeaveFreed, abi.LeaveUnlocked:
		return scene{steps: []step{
			open, v("claim 1"), v("charge 0 data %d", piece), v("leave"),
			v("claim 2"), v("charge 0 data %d", piece), v("leave"),
			v("claim 3"), v("charge 0 data %d", piece), v("leave"),
		}, passes: 3, holds: piece}

	case abi.LimitSet:
		return scene{steps: []step{
			open, v("limit 0 %d", sceneLimit), v("limit 1 %d", sceneLimit), v("limit 2 %d", sceneLimit),
		}, passes: 3}
	}
	return scene{}
}

// dead leaves three dead processes behind that hold something of each device.
func dead(path string) (steps []step) {
	for _, who := range []string{"d1", "d2", "d3"} {
		steps = append(steps, step{who, "open " + path}, step{who, "claim " + who})
		for d := range sceneDevices {
			steps = append(steps, step{who, fmt.Sprintf("charge %d data %d", d, piece)})
		}
	}
	for _, who := range []string{"d1", "d2", "d3"} {
		steps = append(steps, step{who, "kill"})
	}
	return steps
}
