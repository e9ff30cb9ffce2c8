package limit

import (
	"errors"
	"strconv"
	"strings"
)

// The variables that carry a job's settings. The first two are HAMi-core's,
// and with _0 to _15 behind them hold the limit of one device.
const (
	EnvMemory    = "CUDA_DEVICE_MEMORY_LIMIT"
	EnvCompute   = "CUDA_DEVICE_SM_LIMIT"
	EnvTolerance = "RATION_TOLERANCE"
)

// Settings is what a job is given: what each process of it finds in its
// environment.
type Settings struct {
	Memory  Set[Memory]
	Compute Set[Compute]

	// Tolerance is how far usage may pass a memory limit.
	Tolerance Percent
}

// FromEnv reads settings from an environment in the form of [os.Environ]. All
// that is wrong is reported at once, each as an [InputError]. A variable that
// looks like a limit but names no device is an error too: whoever set it
// believes in a limit that would not be there.
func FromEnv(environ []string) (Settings, error) {
	var (
		settings Settings
		errs     []error
		seen     = make(map[string]bool)
	)
	for _, entry := range environ {
		key, value, ok := strings.Cut(entry, "=")
		if !ok || seen[key] {
			continue // the first of several counts, as it does for getenv
		}
		seen[key] = true
		if use, err := settings.set(key, value); err != nil {
			errs = append(errs, &InputError{Source: key, Value: value, Err: err, Use: use})
		}
	}
	if errs != nil {
		return Settings{}, errors.Join(errs...)
	}
	return settings, nil
}

func (s *Settings) set(key, value string) (use string, err error) {
	if suffix, ok := cutVariable(key, EnvMemory); ok {
		return s.Memory.setVariable(suffix, value, parseMemory, memoryUse)
	}
	if suffix, ok := cutVariable(key, EnvCompute); ok {
		return s.Compute.setVariable(suffix, value, parseCompute, computeUse)
	}
	if key == EnvTolerance {
		s.Tolerance, err = parsePercent(value)
		return toleranceUse, err
	}
	return "", nil
}

// cutVariable returns what follows name in key: nothing, or _ and more.
func cutVariable(key, name string) (suffix string, ok bool) {
	suffix, ok = strings.CutPrefix(key, name)
	return suffix, ok && (suffix == "" || suffix[0] == '_')
}

func (s *Set[L]) setVariable(suffix, value string, parse func(string) (L, error), limitUse string) (use string, err error) {
	place := &s.Default
	if suffix != "" {
		i, err := parseDevice(suffix[1:])
		if err != nil {
			return deviceUse + " at the end of the name", err
		}
		place = &s.Device[i]
	}
	*place, err = parse(value)
	return limitUse, err
}

// Environ renders s as the variables that [FromEnv] reads it back from.
func (s Settings) Environ() []string {
	environ := append(s.Memory.environ(EnvMemory), s.Compute.environ(EnvCompute)...)
	if s.Tolerance != 0 {
		environ = append(environ, EnvTolerance+"="+s.Tolerance.String())
	}
	return environ
}

func (s Set[L]) environ(name string) []string {
	var environ []string
	if s.Default.IsSet() {
		environ = append(environ, name+"="+s.Default.String())
	}
	for i, l := range s.Device {
		if l.IsSet() {
			environ = append(environ, name+"_"+strconv.Itoa(i)+"="+l.String())
		}
	}
	return environ
}
