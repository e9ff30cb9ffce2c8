package limit

import (
	"errors"
	"strconv"
	"strings"
)

// Environment variables with a job's settings. The first two are HAMi-core's; with _0
// to _15 appended they have the limit of one device.
const (
	EnvMemory    = "CUDA_DEVICE_MEMORY_LIMIT"
	EnvCompute   = "CUDA_DEVICE_SM_LIMIT"
	EnvTolerance = "RATION_TOLERANCE"
)

// Settings are a job's limits, as its processes find them in their environment.
type Settings struct {
	Memory  Set[Memory]
	Compute Set[Compute]

	// Tolerance is how far usage may exceed a memory limit.
	Tolerance Percent
}

// FromEnv reads settings from an environment in the form of [os.Environ]. It reports
// all errors at once, each as an [InputError]. A variable that looks like a limit but
// names no device is an error too: the user who set it relies on the limit.
func FromEnv(environ []string) (Settings, error) {
	var (
		settings Settings
		errs     []error
		seen     = make(map[string]bool)
	)
	for _, entry := range environ {
		key, value, ok := strings.Cut(entry, "=")
		if !ok || seen[key] {
			continue // the first of several counts, as with getenv
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

// cutVariable reports whether key is name or begins with name and _, and returns what
// follows name.
func cutVariable(key, name string) (suffix string, ok bool) {
	suffix, ok = strings.CutPrefix(key, name)
	return suffix, ok && (suffix == "" || suffix[0] == '_')
}

func (s *Set[L]) setVariable(suffix, value string, parse func(string) (L, error), limitUse string) (use string, err error) {
	target := &s.Default
	if suffix != "" {
		i, err := parseDevice(suffix[1:])
		if err != nil {
			return deviceUse + " at the end of the name", err
		}
		target = &s.Device[i]
	}
	*target, err = parse(value)
	return limitUse, err
}

// Environ returns s as environment variables, for [FromEnv] to read.
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
