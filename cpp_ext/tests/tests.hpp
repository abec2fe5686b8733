// The tests of the native core are a plain program, so that sanitizers see all of it. Each file test_….cpp has one
// function, which main.cpp calls.
#pragma once

#include <cstdio>
#include <cstdlib>

// Ends the program with a message if a condition is false. Unlike assert, it is checked in every build.
#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                        \
        }                                                                        \
    } while (false)

void test_core();
void test_json();
void test_min_cut();
void test_model();
void test_parallel();
void test_policy();
