package gputest

import (
	"fmt"

	"ration/internal/humanfmt"
)

// meminfoChecks check how much memory a program in a job sees.
func meminfoChecks() []Check {
	const limit = 10 * gib
	return []Check{
		{Group: "meminfo", Name: "nvidia-smi", Needs: []string{torch, "nvidia-smi"}, Room: 2 * gib, run: func(t *Trial) error {
			step, err := t.startOne(limit, "read", t.script("meminfo"))
			if err != nil {
				return err
			}
			for key, want := range map[string]uint64{
				"smi_total_mib": limit / mib, "torch_total": limit, "torch_props": limit,
			} {
				if got, err := step.Bytes(key); err != nil || got != want {
					return fmt.Errorf("%s is %s in the job, not %d", key, step.values[key], want)
				}
			}
			used, err := step.Bytes("smi_used_mib")
			if err != nil {
				return err
			}
			all, err := t.compare("read")
			if err != nil {
				return err
			}
			if counted := all[0].ration / mib; used > counted+toleranceBytes/mib || used+toleranceBytes/mib < counted {
				return fmt.Errorf("nvidia-smi in the job shows %d MiB used, ration counts %d", used, counted)
			}
			t.note("%d MiB of %d", used, limit/mib)
			return t.finish()
		}},
		{Group: "meminfo", Name: "jax-preallocation", Needs: []string{jax}, Room: limit, run: func(t *Trial) error {
			step, err := t.startOne(limit, "read", t.script("meminfo", "jax"))
			if err != nil {
				return err
			}
			bytes, err := step.Bytes("bytes_limit")
			if err != nil {
				return err
			}
			// Three quarters of what is free when it starts, and at most of the limit.
			if bytes > limit*3/4 || bytes < limit/2 {
				return fmt.Errorf("JAX reserved %s of %s", humanfmt.Bytes(bytes), humanfmt.Bytes(limit))
			}
			t.note("JAX reserved %s of %s", humanfmt.Bytes(bytes), humanfmt.Bytes(limit))
			if _, err := t.compare("read"); err != nil {
				return err
			}
			t.noteDifference()
			return t.finish()
		}},
	}
}

// startOne starts one program in a job of its own, and waits for its first step.
func (t *Trial) startOne(limit uint64, step string, command []string) (Step, error) {
	if err := t.open(limit); err != nil {
		return Step{}, err
	}
	p, err := t.start(nil, command...)
	if err != nil {
		return Step{}, err
	}
	return p.At(step)
}
