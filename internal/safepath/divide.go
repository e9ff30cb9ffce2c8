package safepath

import "slices"

// Divide divides total among users that want some of it each, and returns what each gets: all that it
// wants, or an equal share of what the users that want less have left. So a user that wants very much takes
// nothing from the others.
func Divide(total int, wants []int) (gets []int) {
	gets = make([]int, len(wants))
	order := make([]int, len(wants))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return wants[a] - wants[b] })
	for n, i := range order {
		gets[i] = min(wants[i], total/(len(order)-n))
		total -= gets[i]
	}
	return gets
}
