"""Speed and memory as ratios: Strandline beside the barest thing that does the same work.

Absolute numbers say more about a machine than about a program, and a machine that is shared says something else every
minute. So every line here is a ratio of two things measured in the same run, in turns (ours, the other, ours, the
other, …), and both numbers are medians.
"""
