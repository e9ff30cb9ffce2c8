package limit

// MaxName is the length of the longest name.
const MaxName = 63

// CheckName returns an error matching [ErrName] unless name is a valid job name: 1 to 63 ASCII
// letters, digits, '.', '_' and '-', not beginning with '.' or '-'. Such a name is a valid file
// name, and never a hidden file, a path or an option. source is for the message.
func CheckName(source, name string) error {
	if !validName(name) {
		return &InputError{Source: source, Value: name, Err: ErrName, Use: nameUse}
	}
	return nil
}

func validName(name string) bool {
	if len(name) < 1 || len(name) > MaxName || name[0] == '.' || name[0] == '-' {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
