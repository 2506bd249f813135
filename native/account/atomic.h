/*
 * Loads and stores of memory that others see: the shared pages, and the state that threads share.
 *
 * A process may be killed after any store to the pages, and the others must find its stores made in the order
 * of the program. So each store is a release and each load an acquire; on x86-64 both are plain moves.
 */
#pragma once

#define XPU_LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define XPU_STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)
