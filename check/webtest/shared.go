package webtest

import (
	"fmt"

	"ration/machine"
)

// names of users, in no order.
var names = []string{"alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy", "mallory", "niaj", "olivia", "peggy", "rupert", "sybil", "trent", "victor", "walter", "yasmin"}

// User returns the name of a user.
func User(n int) string {
	if n < len(names) {
		return names[n]
	}
	return fmt.Sprintf("student%02d", n)
}

// SharedMachine returns a machine with devices that users share: each has a job on one device, every third a
// second one, and every fifth one that runs on up to four devices.
func SharedMachine(devices, users int) *machine.Machine {
	m := Machine(devices, 0, 0)
	kinds := []string{"notebook", "train", "eval", "serve-llm", "finetune", "embed"}
	add := func(user, kind int, used, limit uint64, on ...int) {
		j := Job(len(m.Jobs), on[0], 2)
		j.Owner, j.UID, j.Name = User(user), 1000+user, kinds[kind%len(kinds)]
		j.Path = fmt.Sprintf("/run/ration/%s/%s/region", j.Owner, j.Name)
		j.Devices = nil
		for n := range j.Processes {
			j.Processes[n].User, j.Processes[n].UID, j.Processes[n].Holdings = j.Owner, j.UID, nil
		}
		for _, d := range on {
			g := &m.Devices[d]
			used, limit := min(used*GiB, g.Total-min(g.Total, g.Used)), limit*GiB
			g.Used, g.Rations, g.Jobs = g.Used+used, g.Rations+limit, g.Jobs+1
			j.Devices = append(j.Devices, machine.Device{Device: d, UUID: g.UUID, Limited: true, Limit: limit, Used: used, Peak: used + GiB, Total: g.Total})
			for n := range j.Processes {
				p := &j.Processes[n]
				p.Holdings = append(p.Holdings, machine.Holding{Device: d, Total: used / 2, Data: used / 2, Driver: used / 2, DriverNow: true})
			}
		}
		m.Jobs = append(m.Jobs, j)
	}
	for n := range users {
		at := n * 5 % devices
		used := uint64(6 + n*17%43)
		add(n, n, used, used+8, at)
		if n%3 == 0 {
			add(n, n+1, 4+used/3, used, (at+1)%devices)
		}
		if n%5 == 0 {
			on := []int{}
			for d := range min(4, devices) {
				on = append(on, (at+2+d)%devices)
			}
			add(n, n+3, 20+used/2, 24+used/2, on...)
		}
	}
	return m
}
