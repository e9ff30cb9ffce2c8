package gputest

import (
	"fmt"

	"ration/internal/humanfmt"
)

func viewChecks() []Check {
	const limit = 10 * gib
	return []Check{
		{Group: "view", Name: "nvidia-smi", Needs: []string{torch, "nvidia-smi"}, Room: 2 * gib, run: func(s *Stage) error {
			step, err := s.one(limit, "seen", s.script("seen"))
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
			all, err := s.agree("seen")
			if err != nil {
				return err
			}
			if ours := all[0].ours / mib; used > ours+near/mib || used+near/mib < ours {
				return fmt.Errorf("nvidia-smi in the job shows %d MiB used, the books have %d", used, ours)
			}
			s.see("%d MiB of %d", used, limit/mib)
			return s.finish()
		}},
		{Group: "view", Name: "jax-preallocation", Needs: []string{jax}, Room: limit, run: func(s *Stage) error {
			step, err := s.one(limit, "seen", s.script("seen", "jax"))
			if err != nil {
				return err
			}
			bytes, err := step.Bytes("bytes_limit")
			if err != nil {
				return err
			}
			// Three quarters of what is free when it starts, at most of the ration.
			if bytes > limit*3/4 || bytes < limit/2 {
				return fmt.Errorf("JAX gave itself %s of %s", humanfmt.Bytes(bytes), humanfmt.Bytes(limit))
			}
			s.see("JAX gave itself %s of %s", humanfmt.Bytes(bytes), humanfmt.Bytes(limit))
			if _, err := s.agree("seen"); err != nil {
				return err
			}
			s.seeOff()
			return s.finish()
		}},
	}
}

// one starts one program in a job of its own, and waits for its first step.
func (s *Stage) one(limit uint64, step string, command []string) (Step, error) {
	if err := s.open(limit); err != nil {
		return Step{}, err
	}
	p, err := s.start(nil, command...)
	if err != nil {
		return Step{}, err
	}
	return p.At(step)
}
