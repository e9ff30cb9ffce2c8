package limit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Environment variables with a job's settings. The first three take _0 to _15 at the end for the
// limit of one device. EnvMemory, EnvCompute and EnvPolicy are HAMi-core's.
const (
	EnvMemory     = "CUDA_DEVICE_MEMORY_LIMIT"
	EnvCompute    = "CUDA_DEVICE_SM_LIMIT"
	EnvComputeMax = "RATION_COMPUTE_MAX"
	EnvPolicy     = "GPU_CORE_UTILIZATION_POLICY" // meaning of EnvCompute: a share, a cap, or neither
	EnvRound      = "RATION_COMPUTE_ROUND"
	EnvMode       = "RATION_COMPUTE" // strict, or empty
	EnvPriority   = "RATION_PRIORITY"
	EnvWaitAlloc  = "RATION_WAIT_ALLOC"  // for how long a request waits for memory of the job
	envTask       = "CUDA_TASK_PRIORITY" // HAMi-core's: 0 is high, 1 low; EnvPriority comes first
)

// IsVariable reports whether an environment variable sets a limit that is stored in a job's region.
// EnvMode does not: each process reads it itself.
func IsVariable(key string) bool {
	for _, name := range []string{EnvMemory, EnvCompute, EnvComputeMax} {
		if _, is := cutVariable(key, name); is {
			return true
		}
	}
	return key == EnvPolicy || key == EnvRound || key == EnvPriority || key == EnvWaitAlloc || key == envTask
}

// Settings are all settings that a job's processes read from their environment.
type Settings struct {
	Limits
	Round     Round     // of which shares are slices; 0 if it is not set
	WaitAlloc WaitAlloc // for how long a request waits for memory of the job; 0 if it is not set
	Strict    bool      // a share that cannot be enforced is an error of the program
}

// FromEnv reads settings from an environment in the form of [os.Environ]. It reports all errors at
// once, each as an [InputError]. A variable that looks like a limit but names no device is an error
// too: the user who set it relies on the limit.
func FromEnv(environ []string) (Settings, error) {
	var (
		settings Settings
		task     Priority
		policy   policy
		errs     []error
		zeros    []string
		seen     = make(map[string]bool)
	)
	for _, entry := range environ {
		key, value, ok := strings.Cut(entry, "=")
		if !ok || seen[key] {
			continue // the first of several applies, as with getenv
		}
		seen[key] = true
		if isHAMi(key) && value == "" {
			continue // as if it were not set
		}
		if strings.HasPrefix(value, "0") {
			zeros = append(zeros, key)
		}
		use, err := settings.set(key, value)
		if key == EnvPolicy {
			use = policyUse
			policy, err = parsePolicy(value)
		}
		if key == envTask {
			task = taskPriorities[value]
		}
		if err != nil {
			errs = append(errs, &InputError{Source: key, Value: value, Err: err, Use: use})
		}
	}
	if errs != nil {
		return Settings{}, errors.Join(errs...)
	}
	for _, key := range zeros {
		settings.inherit(key)
	}
	settings.apply(policy)
	settings.Priority = cmp.Or(settings.Priority, task)
	return settings, nil
}

// isHAMi reports whether a variable is one of HAMi-core's limits.
func isHAMi(key string) bool {
	_, memory := cutVariable(key, EnvMemory)
	_, compute := cutVariable(key, EnvCompute)
	return memory || compute
}

// inherit makes zero for one device what it is in HAMi-core: the limit of all devices, where there
// is one. None is no limit.
func (s *Settings) inherit(key string) {
	if suffix, ok := cutVariable(key, EnvMemory); ok {
		s.Memory.inherit(suffix)
	} else if suffix, ok := cutVariable(key, EnvCompute); ok {
		s.Compute.inherit(suffix)
	}
}

func (s *Set[L]) inherit(suffix string) {
	if suffix == "" || !s.Default.IsSet() {
		return
	}
	if i, err := parseDevice(suffix[1:]); err == nil && s.Device[i].String() == "none" {
		s.Device[i] = *new(L)
	}
}

// apply converts HAMi-core's limit as its policy says. A cap of our own takes precedence.
func (s *Settings) apply(p policy) {
	if p == policyShare {
		return
	}
	if p == policyCap {
		fill(&s.ComputeMax.Default, s.Compute.Default)
		for i := range s.Compute.Device {
			fill(&s.ComputeMax.Device[i], s.Compute.Device[i])
		}
	}
	s.Compute = Set[Compute]{}
}

func fill(to *Compute, from Compute) {
	if !to.IsSet() {
		*to = from
	}
}

func (s *Settings) set(key, value string) (use string, err error) {
	if suffix, ok := cutVariable(key, EnvMemory); ok {
		return s.Memory.setVariable(suffix, value, parseMemory, memoryUse)
	}
	if suffix, ok := cutVariable(key, EnvCompute); ok {
		return s.Compute.setVariable(suffix, value, parseHAMiCompute, computeUse)
	}
	if suffix, ok := cutVariable(key, EnvComputeMax); ok {
		return s.ComputeMax.setVariable(suffix, value, parseCompute, computeUse)
	}
	switch key {
	case EnvRound:
		s.Round, err = parseRound(value)
		return roundUse, err
	case EnvPriority:
		s.Priority, err = parsePriority(value)
		return priorityUse, err
	case EnvWaitAlloc:
		s.WaitAlloc, err = parseWaitAlloc(value)
		return waitAllocUse, err
	case EnvMode:
		s.Strict, err = parseMode(value)
		return modeUse, err
	}
	return "", nil
}

// parseHAMiCompute reads HAMi-core's limit, of which more than 100 is none.
func parseHAMiCompute(s string) (Compute, error) {
	if digits, rest := cutDigits(s); digits != "" && (rest == "" || rest == "%") {
		if n, err := strconv.ParseUint(digits, 10, 64); err != nil || n > 100 {
			return computeNone, nil
		}
	}
	return parseCompute(s)
}

// cutVariable reports whether key is name, or begins with name and _. It returns the part after
// name.
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
	environ := slices.Concat(s.Memory.environ(EnvMemory), s.Compute.environ(EnvCompute), s.ComputeMax.environ(EnvComputeMax))
	if s.Round != 0 {
		environ = append(environ, EnvRound+"="+s.Round.String())
	}
	if s.Priority != 0 {
		environ = append(environ, EnvPriority+"="+s.Priority.String())
	}
	if s.WaitAlloc != 0 {
		environ = append(environ, EnvWaitAlloc+"="+s.WaitAlloc.String())
	}
	if s.Strict {
		environ = append(environ, EnvMode+"="+modeStrict)
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

// Round is how long the slices of all jobs on a device take together if their shares add up to 100
// per cent, in microseconds. Zero means not set.
type Round uint32

// Bounds of a round. They equal abi.MinRound and abi.MaxRound.
const (
	minRound Round = 1_000
	maxRound Round = 200_000
)

// ParseRound parses the value of source as a round: a number followed by ms or us, or plain
// microseconds.
func ParseRound(source, value string) (Round, error) {
	r, err := parseRound(value)
	if err != nil {
		return 0, &InputError{Source: source, Value: value, Err: err, Use: roundUse}
	}
	return r, nil
}

func parseRound(s string) (Round, error) {
	if s == "" {
		return 0, errEmpty
	}
	digits, unit := cutDigits(s)
	n, err := strconv.ParseUint(digits, 10, 32)
	if err == nil && unit == "ms" && n <= uint64(maxRound) {
		n, unit = n*1000, ""
	}
	if err != nil || unit != "" && unit != "us" || n < uint64(minRound) || n > uint64(maxRound) {
		return 0, errRound
	}
	return Round(n), nil
}

// String renders r for people and for [ParseRound]: 10ms, 2500us.
func (r Round) String() string {
	if r%1000 == 0 {
		return strconv.Itoa(int(r/1000)) + "ms"
	}
	return strconv.Itoa(int(r)) + "us"
}

// policy is the meaning of HAMi-core's compute limit.
type policy int

const (
	policyShare policy = iota
	policyCap
	policyNeither
)

// parsePolicy parses HAMi-core's policy, ignoring case as HAMi-core does.
func parsePolicy(s string) (policy, error) {
	switch strings.ToLower(s) {
	case "", "default":
		return policyShare, nil
	case "force":
		return policyCap, nil
	case "disable":
		return policyNeither, nil
	}
	return policyShare, errPolicy
}

const modeStrict = "strict"

func parseMode(s string) (strict bool, err error) {
	if s != "" && s != modeStrict {
		return false, errMode
	}
	return s == modeStrict, nil
}

// meaningless lists variables of HAMi-core that have no effect, and why.
// shim/config.c has the same list.
var meaningless = [][2]string{
	{"CUDA_OVERSUBSCRIBE", "no memory is moved to the host: what exceeds the limit is refused"},
	{"ACTIVE_OOM_KILLER", "no process is ever ended"},
	{"CUDA_DISABLE_CONTROL", "ration run was asked for a job (start the command without it)"},
}

// Meaningless returns a text for each variable that is set but has no effect.
func Meaningless(environ []string) (texts []string) {
	for _, v := range environ {
		key, value, _ := strings.Cut(v, "=")
		for _, m := range meaningless {
			off := value == "0" || strings.EqualFold(value, "false")
			if key == m[0] && value != "" && !off {
				texts = append(texts, fmt.Sprintf("%s=%s has no effect: %s", key, value, m[1]))
			}
		}
	}
	return texts
}
