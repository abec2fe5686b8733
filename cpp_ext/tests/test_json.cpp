// Tests of the JSON reader for texts in models: it reads what Python writes, and refuses everything else.
#include <stdexcept>
#include <string>
#include <string_view>

#include "../../transformations/src/json.hpp"
#include "tests.hpp"

namespace {

using namespace ov_hsdag;

bool refused(std::string_view text) {
    try {
        (void)parse_list(text);
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

void test_names_come_back() {
    CHECK((parse_list(R"([])") == StringList{}));
    CHECK((parse_list(R"( ["a", "\"\\\/\n"] )") == StringList{"a", "\"\\/\n"}));
    CHECK(
        (parse_list(R"(["\u00e4\u20AC", "\ud83d\ude00"])") == StringList{"\xC3\xA4\xE2\x82\xAC", "\xF0\x9F\x98\x80"}));
    CHECK((parse_lists(R"({"a": [], "b": ["c"]})") == StringLists{{"a", {}}, {"b", {"c"}}}));
}

void test_other_texts_are_refused() {
    for (const std::string_view text : {"", "[", "[\"", "[\"a\\", "[\"\\u00", "[1]", "[\"a\",]", "[\"a\"] x", "{}"}) {
        CHECK(refused(text));
    }
    CHECK(refused("[\"\\u\x10\x11\x12\x13\"]"));  // no digits, though they are like digits in their lower bits
    CHECK(refused(R"(["\ud83dx"])"));
    CHECK(refused(R"(["\ud83d\u0041"])"));  // no second half of a pair
    CHECK(refused(std::string(100000, '[')));
}

}  // namespace

void test_json() {
    test_names_come_back();
    test_other_texts_are_refused();
}
