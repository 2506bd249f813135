/*
 * A forked child's copy of its parent's lists. The child must not use or free them: another thread of the
 * parent may have been changing them. They stay reachable, because a child with LeakSanitizer would otherwise
 * report them at its end.
 */
#pragma once

/* Empties the list `head_`, whose elements have a `next`, into the list `left_` of earlier forks. */
#define XPU_LEAVE_BEHIND(head_, left_)                                                                       \
    do {                                                                                                     \
        __typeof__(&(left_)) end_ = &(head_);                                                                \
        while (*end_)                                                                                        \
            end_ = &(*end_)->next;                                                                           \
        *end_ = left_;                                                                                       \
        left_ = head_;                                                                                       \
        head_ = NULL;                                                                                        \
    } while (0)
