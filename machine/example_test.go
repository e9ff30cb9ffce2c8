package machine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"ration/internal/abi"
	"ration/internal/region"
	"ration/machine"
)

const MiB = 1 << 20

// startJob makes a job named train, in which this process holds memory and was
// refused some, in a folder of jobs of its own. A real one is made by ration run.
func startJob() (stop func()) {
	folder, err := os.MkdirTemp("", "ration-example-")
	if err != nil {
		panic(err)
	}
	before := os.Getenv("RATION_DIR")
	os.Setenv("RATION_DIR", folder)
	err = os.Mkdir(filepath.Join(folder, "train"), 0o700)
	var opt region.Options
	opt.Limits.Memory[0] = abi.MakeLimit(1024 * MiB)
	r, openErr := region.Open(filepath.Join(folder, "train", "region"), opt)
	if err = errors.Join(err, openErr); err != nil {
		panic(err)
	}
	slot, err := r.Claim("train.py")
	if err == nil {
		err = errors.Join(slot.Charge(0, abi.Context, 256*MiB), slot.Charge(0, abi.Data, 512*MiB))
	}
	if err != nil {
		panic(err)
	}
	_ = slot.Charge(0, abi.Data, 300*MiB) // is refused
	return func() {
		_ = r.Close()
		os.Setenv("RATION_DIR", before)
		_ = os.RemoveAll(folder)
	}
}

func ExampleRead() {
	defer startJob()()

	m, err := machine.Read()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, job := range m.Jobs {
		if err := job.Err(); err != nil {
			fmt.Println(job.Title(), err)
			continue
		}
		for _, d := range job.Devices {
			fmt.Printf("%s, device %d: %d of %d MiB\n", job.Title(), d.Device, d.Used/MiB, d.Limit/MiB)
		}
		for _, p := range job.Processes {
			for _, h := range p.Holdings {
				fmt.Printf("  %s (%s) holds %d MiB, %d of them for its context\n", p.Name, p.State, h.Total/MiB, h.Context/MiB)
			}
		}
	}
	// Output:
	// train, device 0: 768 of 1024 MiB
	//   train.py (live) holds 768 MiB, 256 of them for its context
}

func ExampleReadJob() {
	defer startJob()()

	job, err := machine.ReadJob("train")
	fmt.Println(job.Name, job.Claims, err)

	_, err = machine.ReadJob("traim")
	fmt.Println(errors.Is(err, machine.ErrNoJob), err)
	// Output:
	// train 1 <nil>
	// true traim: no such job (there are: train)
}

func ExampleReadJob_notARegion() {
	_, err := machine.ReadJob("./example_test.go")
	switch {
	case errors.Is(err, machine.ErrForeign):
		fmt.Println("that is not a region")
	case errors.Is(err, machine.ErrVersion):
		fmt.Println("made by another version of ration")
	}
	// Output: that is not a region
}

func ExampleGroupRefusals() {
	defer startJob()()

	job, err := machine.ReadJob("train")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range machine.GroupRefusals(job.Refusals) {
		fmt.Printf("%s asked for %d MiB with %d MiB free, %d time\n",
			f.RequesterName(job.Processes), f.Asked/MiB, f.Free()/MiB, f.Times)
	}
	// Output: train.py asked for 300 MiB with 256 MiB free, 1 time
}

func ExampleWatch() {
	defer startJob()()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	for ev, err := range machine.Watch(ctx) {
		if err != nil {
			fmt.Println(err)
			return
		}
		switch ev.Kind {
		case machine.RequestRefused:
			fmt.Printf("%s was refused %d MiB\n", ev.Job, ev.Refusal.Asked/MiB)
		case machine.Changed:
			fmt.Printf("now there is %d job\n", len(ev.Machine.Jobs))
			cancel() // a real program goes on
		}
	}
	// Output:
	// train was refused 300 MiB
	// now there is 1 job
}

// How full is each GPU, and how much of it is handed out?
func ExampleMachine_devices() {
	m, err := machine.Read()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, g := range m.Devices {
		fmt.Printf("GPU %d: %d of %d MiB used, %d MiB handed out to %d jobs\n", g.Device, g.Used/MiB, g.Total/MiB, g.Rations/MiB, g.Jobs)
	}
}
