package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/region"
	"ration/machine"
)

// gigabytes returns what is held on each device, in GiB.
func gigabytes(sizes ...uint64) (out [abi.Devices]uint64) {
	for d, size := range sizes {
		out[d] = size * gib
	}
	return out
}

// What programs hold in no ration is not given to others.
func TestOutside(t *testing.T) {
	type holds = map[int][abi.Devices]uint64
	ration := func(uid int, size uint64) booked { return booked{uid: uid, limits: on(size)} }
	for _, c := range []struct {
		name            string
		booked          []booked
		without         []int
		inJobs, outside holds
		used, has       uint64
		roots           []booked // root's own jobs: uid is what they hold, in GiB
		want            uint64   // of device 0, in GiB, for 20 GiB of user 9
	}{
		{name: "nothing", want: 0},
		{name: "in rations", booked: []booked{ration(1, 60)}, inJobs: holds{1: gigabytes(60)}, used: 60, want: 0},
		{name: "above a ration", booked: []booked{ration(1, 20), ration(2, 20)}, inJobs: holds{1: gigabytes(60), 2: gigabytes(10)}, used: 70, want: 40},
		{name: "of root", outside: holds{0: gigabytes(130)}, used: 130, want: 130},
		{name: "of a job of root", roots: []booked{ration(30, 0)}, used: 30, want: 30},
		{name: "of a job of root, within its limit", roots: []booked{ration(30, 40)}, used: 30, want: 0},
		{name: "of a job of root, above its limit", roots: []booked{ration(30, 10)}, used: 30, want: 20},
		{name: "of a job of root, beside one that holds little", roots: []booked{ration(30, 0), ration(1, 40)}, used: 31, want: 30},
		{name: "of a job of root that began later", roots: []booked{ration(30, 40)}, used: 30, has: 20, want: 0},
		{name: "the user's own, in no job", outside: holds{9: gigabytes(15)}, used: 15, want: 0},
		{name: "the user's own, more than it asks for", outside: holds{9: gigabytes(25)}, used: 25, want: 5},
		{name: "of a user in no job, within the ration", booked: []booked{ration(1, 60)}, inJobs: holds{1: gigabytes(10)}, outside: holds{1: gigabytes(50)}, used: 60, want: 0},
		{name: "of a user who loses the ration", booked: []booked{ration(1, 60)}, without: []int{1}, outside: holds{1: gigabytes(50)}, used: 50, want: 50},
		{name: "of a process that has ended since", booked: []booked{ration(1, 60)}, without: []int{1}, inJobs: holds{1: gigabytes(60)}, used: 60, want: 0},
		{name: "of a job that has been taken back since", inJobs: holds{1: gigabytes(60)}, used: 60, want: 0},
		{name: "more than the driver counts", booked: []booked{ration(1, 20)}, inJobs: holds{1: gigabytes(20)}, roots: []booked{ration(900, 0)}, used: 50, want: 30},
		{name: "little", outside: holds{0: gigabytes(0)}, used: 1, want: 0},
		{name: "for what the user has already", outside: holds{0: gigabytes(130)}, used: 130, has: 20, want: 0},
	} {
		b := beside{booked: c.booked, uid: 9, held: &holdings{inJobs: c.inJobs, outside: c.outside, roots: map[string][abi.Devices]uint64{}}, roots: map[string]region.Limits{}}
		var roots uint64
		for i, j := range c.roots {
			path := fmt.Sprint(i)
			b.held.roots[path], b.roots[path] = gigabytes(uint64(j.uid)), j.limits
			roots += j.limits.Memory[0].Bytes()
		}
		b.held.used[0], b.has.Memory[0] = c.used*gib, c.has*gib
		if c.has > 0 {
			roots = 0
		}
		held, has := b.outside(0, on(20), c.without)
		expect.True(t, held == c.want*gib && has == roots, c.name, held, has)
		b.held = nil
		held, has = b.outside(0, on(20), c.without)
		expect.True(t, held == 0 && has == roots, c.name, "unknown", held, has)
	}
}

// A ration is where no program holds the memory, and a refusal says that programs hold it.
func TestPlaceBesideOthersMemory(t *testing.T) {
	r := machineOf(140, 140)
	b := beside{uid: 9, held: &holdings{outside: map[int][abi.Devices]uint64{0: gigabytes(130, 100)}, used: gigabytes(130, 100)}}
	all := r.candidates(on(60, 60), b, nil)
	expect.True(t, len(all) == 2 && all[0].Full && all[1].Full && all[0].Free == 10*gib && all[1].Free == 40*gib, all)
	err := r.checkBeside(on(0, 60), b, nil)
	expect.True(t, errors.Is(err, ErrOverbooked) && strings.Contains(err.Error(), "on GPU 1: programs hold 100 GiB in no ration of its 140 GiB (try again later, or ask for less: ration policy ask --mem 40g)"), err)
	expect.Equal(t, whyFull(err), "no room for 60 GiB on GPU 1: programs hold 100 GiB in no ration of its 140 GiB")
	r.policy.Overbook = true
	expect.True(t, !slices.ContainsFunc(r.candidates(on(60, 60), b, nil), func(c launch.Candidate) bool { return c.Full || c.Free > 40*gib }))
}

// Which memory counts is the driver's word: not what a region says, and nothing if the driver does not say who holds it.
func TestHeldOn(t *testing.T) {
	j := func(path string, devices ...machine.Device) machine.Job {
		return machine.Job{Path: path, Devices: devices}
	}
	m := machine.Machine{
		Devices: []machine.GPU{{Device: 0, UUID: "a", Used: 7}, {Device: 1, UUID: "b", Used: 8}, {Device: 2, UUID: "c", Used: 9, MIG: true}},
		Jobs: []machine.Job{
			j(job.OfUserPath(5), machine.Device{Device: 0, UUID: "b", Used: 900, Driver: 50, Escaped: 20}),
			j(job.RunPath(5, "x"), machine.Device{Device: 1, UUID: "b", Driver: 3}, machine.Device{Device: 2, UUID: "c", Driver: 3}),
			j("/run/ration/train/region", machine.Device{Device: 0, UUID: "a", Driver: 4}),
			{Path: "/tmp/ration-6/x/region", UID: 6, Devices: []machine.Device{{Device: 0, UUID: "a", Driver: 70, Escaped: 10}}},
		},
		Outside: []machine.Outside{{UID: 5, Device: 1, Used: 20}, {UID: 0, Device: 0, Used: 2}, {UID: -1, Device: 0, Used: 600},
			{UID: 100006, Device: 0, Used: 5}},
	}
	account := func(uid int) int { return uid % 100000 } // 6 has 100006 in /etc/subuid
	h := heldOn(&m, account)
	expect.True(t, h.used == [abi.Devices]uint64{7, 8} && len(h.inJobs) == 1 && h.inJobs[5] == [abi.Devices]uint64{1: 33}, h.used, h.inJobs)
	expect.True(t, len(h.outside) == 3 && h.outside[5][1] == 20 && h.outside[6][0] == 65 && h.outside[0][0] == 2 && len(h.roots) == 1 && h.roots["/run/ration/train/region"][0] == 4, h.outside, h.roots)
	m.Findings = []machine.Finding{{Kind: machine.DriverSilent}}
	expect.True(t, heldOn(&m, account) == nil, "the driver does not say")
}

// What was seen long ago does not count any more, and a request that needs it is asked again after a look.
func TestMustLook(t *testing.T) {
	r := &rations{seen: &seen{at: time.Now().Add(-heldFor), held: &holdings{}}}
	expect.True(t, r.beside(1<<30).held == nil && !r.mustLook() && !r.unread)
	r.seen = &seen{at: time.Now(), held: &holdings{}}
	expect.True(t, r.beside(1<<30).held != nil)
	r.seen = nil
	expect.True(t, r.mustLook() && r.unread)
}
