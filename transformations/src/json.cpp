// The parser of the subset of JSON. It is strict: text behind the value, numbers and other types are errors.
#include "json.hpp"

#include <cstdint>
#include <stdexcept>

namespace ov_hsdag {
namespace {

// A recursive-descent parser. Each function reads one element from the present position, and throws
// std::invalid_argument if there is another.
class Parser {
public:
    explicit Parser(std::string_view text) : text_(text) {}

    StringList list() {
        StringList values;
        expect('[');
        if (!accept(']')) {
            do {
                values.push_back(string());
            } while (accept(','));
            expect(']');
        }
        return values;
    }

    StringLists lists() {
        StringLists values;
        expect('{');
        if (!accept('}')) {
            do {
                std::string key = string();
                expect(':');
                values.emplace_back(std::move(key), list());
            } while (accept(','));
            expect('}');
        }
        return values;
    }

    // The end of the text.
    void end() {
        skip_space();
        if (at_ != text_.size()) fail();
    }

private:
    [[noreturn]] void fail() const { throw std::invalid_argument("no valid JSON at character " + std::to_string(at_)); }

    void skip_space() {
        while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
    }

    // Skips a character, and space before it, if it comes next. Returns whether it did.
    bool accept(char character) {
        skip_space();
        if (at_ >= text_.size() || text_[at_] != character) return false;
        ++at_;
        return true;
    }

    void expect(char character) {
        if (!accept(character)) fail();
    }

    char next() {
        if (at_ >= text_.size()) fail();
        return text_[at_++];
    }

    // The value of four hexadecimal digits.
    std::uint32_t hex4() {
        std::uint32_t value = 0;
        for (int i = 0; i < 4; ++i) {
            const std::size_t digit = std::string_view("0123456789abcdefABCDEF").find(next());
            if (digit == std::string_view::npos) fail();
            value = value * 16 + static_cast<std::uint32_t>(digit < 16 ? digit : digit - 6);
        }
        return value;
    }

    static void append_utf8(std::string& to, std::uint32_t code) {
        if (code < 0x80) {
            to += static_cast<char>(code);
            return;
        }
        const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        constexpr std::uint32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
        to += static_cast<char>(kLead[more] | (code >> (6 * more)));
        for (int i = more - 1; i >= 0; --i) to += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
    }

    std::string string() {
        expect('"');
        std::string value;
        for (char c = next(); c != '"'; c = next()) {
            if (c != '\\') {
                value += c;
                continue;
            }
            const char escaped = next();
            if (escaped == 'u') {
                std::uint32_t code = hex4();
                if (code >= 0xD800 && code < 0xDC00) {  // the first half of a surrogate pair
                    if (next() != '\\' || next() != 'u') fail();
                    const std::uint32_t low = hex4();
                    if (low < 0xDC00 || low > 0xDFFF) fail();
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                }
                append_utf8(value, code);
                continue;
            }
            const std::size_t escape = std::string_view("\"\\/bfnrt").find(escaped);
            if (escape == std::string_view::npos) fail();
            value += "\"\\/\b\f\n\r\t"[escape];
        }
        return value;
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

}  // namespace

StringList parse_list(std::string_view text) {
    Parser parser(text);
    StringList values = parser.list();
    parser.end();
    return values;
}

StringLists parse_lists(std::string_view text) {
    Parser parser(text);
    StringLists values = parser.lists();
    parser.end();
    return values;
}

}  // namespace ov_hsdag
